"""Open files in folders where others may have put something in the way.

The first three functions are for ``opener`` of :func:`open`.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

# Windows has neither.
_NOFOLLOW = getattr(os, 'O_NOFOLLOW', 0)
_NONBLOCK = getattr(os, 'O_NONBLOCK', 0)
# For everybody, less what the umask takes away.
_MODE = 0o666


def create(path: str, flags: int) -> int:
    """Open a file that must not exist yet, not even as a link."""
    return os.open(path, flags | os.O_EXCL | _NOFOLLOW, _MODE)


def append(path: str, flags: int) -> int:
    """Open a file to write, or a new one in place of a link or a pipe."""
    try:
        # A pipe without a reader would block.
        descriptor = os.open(path, flags | _NOFOLLOW | _NONBLOCK, _MODE)
    except OSError:
        if stat.S_ISREG(os.lstat(path).st_mode):
            raise
    else:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    os.unlink(path)
    return create(path, flags)


def read_only(path: str, flags: int) -> int:
    """Open a file for reading, but no pipe or device that never ends."""
    descriptor = os.open(path, flags | _NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, 'not a regular file', path)
    return descriptor


def read_bounded(path: Path, longest: int) -> bytes:
    """The content of a small file.

    Args:
        path (Path): The file.
        longest (int): The most bytes that it may have.

    Raises:
        OSError: If it cannot be read, is no regular file or is too long.
    """
    with open(path, 'rb', opener=read_only) as file:
        content = file.read(longest + 1)
    if len(content) > longest:
        raise OSError(
            errno.EFBIG, f'longer than {longest} bytes', os.fspath(path)
        )
    return content
