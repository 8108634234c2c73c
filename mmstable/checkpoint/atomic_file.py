"""Write a file so that its name never stands for half of it."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from mmstable.files import create
from mmstable.process_identity import is_alive

_SUFFIX = '.mmstable-tmp'
# Machine, process, and what nobody can guess.
_NAME = re.compile(r'\.([0-9a-f]{8})-(\d{1,9})-[0-9a-f]{32}\.mmstable-tmp')
_MACHINE = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
# Seconds after which nobody can be writing a file that has not changed.
_ABANDONED = 24 * 3600.0
# What this process is writing.
_OPEN: set[str] = set()
# Small enough to be still in the cache when it is written after hashing.
_PIECE = 1 << 20


class HashedStream:
    """A file that knows the size and the SHA-256 of what went through it.

    Args:
        file (IO[bytes]): Where the data go.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0
        # torch hides what happened below it behind an error of its own.
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        """Write all of ``data``."""
        view = memoryview(data).cast('B')
        try:
            for start in range(0, len(view), _PIECE):
                piece = view[start : start + _PIECE]
                self._hash.update(piece)
                self._file.write(piece)
        except OSError as error:
            self.error = error
            raise
        self.size += len(view)
        return len(view)

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._file.flush()

    def sha256(self) -> str:
        """The digest of all that was written."""
        return self._hash.hexdigest()


@contextmanager
def atomic_file(
    path: Path, verify: Callable[[Path], None] | None = None
) -> Iterator[HashedStream]:
    """Open a file that gets its name when it is complete and on the disk.

    On any error the temporary file is removed and ``path`` is as before.

    Args:
        path (Path): The name, in a folder that exists.
        verify (Callable, optional): Looks at the complete file before it
            gets its name, and raises if it must not. Defaults to None.
    """
    with _replacement(path, 'wb') as file:
        stream = HashedStream(file)
        try:
            yield stream
        except Exception as error:
            if stream.error is None or stream.error is error:
                raise
            raise stream.error from None
        file.flush()
        os.fsync(file.fileno())
        _check_size(Path(file.name), stream.size)
        if verify is not None:
            verify(Path(file.name))
    sync_folder(path.parent)


def replace_text(path: Path, text: str, encoding: str | None = None) -> None:
    """Write a small text file, complete or not at all.

    Its name may still be the old file's after a power cut. A link of that
    name is replaced; what it points to is left alone.

    Args:
        path (Path): The file.
        text (str): Its content.
        encoding (str, optional): As in :func:`open`. Defaults to None.
    """
    with _replacement(path, 'w', encoding) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _replacement(
    path: Path, mode: str, encoding: str | None = None
) -> Iterator[IO[Any]]:
    token = secrets.token_hex(16)
    temporary = path.with_name(f'.{_MACHINE}-{os.getpid()}-{token}{_SUFFIX}')
    _OPEN.add(temporary.name)
    try:
        with open(temporary, mode, opener=create, encoding=encoding) as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    finally:
        _OPEN.discard(temporary.name)


def sync_folder(folder: Path) -> None:
    """Make names that were given or taken away outlive a power cut."""
    if os.name == 'nt':
        # Windows cannot open a folder.
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files that a killed process has left behind.

    A file is one if its process has ended, as far as that can be told from
    here, or if nothing was written to it for a day. Links are removed, never
    followed.

    Args:
        folder (Path): Where to look.
    """
    for path in folder.glob(f'.*{_SUFFIX}'):
        # Another process may be faster.
        with suppress(OSError):
            if _is_leftover(path):
                path.unlink()


def _is_leftover(path: Path) -> bool:
    if time.time() - path.lstat().st_mtime > _ABANDONED:
        return True
    found = _NAME.fullmatch(path.name)
    if found is None or found[1] != _MACHINE:
        return False
    pid = int(found[2])
    if pid == os.getpid():
        # In a container, the process before this one had the same number.
        return path.name not in _OPEN
    return not is_alive(pid)


def _check_size(path: Path, expected: int) -> None:
    size = path.stat().st_size
    if size != expected:
        raise OSError(f'{expected} bytes were written, {size} arrived')
