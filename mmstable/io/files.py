"""Open files without following links, read in bounds, replace atomically.

:func:`create`, :func:`append` and :func:`read_only` are for ``opener`` of
:func:`open`: other users may have put links or pipes into a folder.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import platform
import re
import secrets
import stat
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Callable, NamedTuple, Union

from mmstable.io.process import is_alive

# Before the umask is applied.
_MODE = 0o666


def create(path: str, flags: int) -> int:
    """Open a file that must not exist yet, not even as a link."""
    return os.open(path, flags | os.O_EXCL | os.O_NOFOLLOW, _MODE)


def append(path: str, flags: int) -> int:
    """Open a file to write, or a new one in place of a link or a pipe."""
    try:
        # A pipe without a reader would block.
        flags_now = flags | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(path, flags_now, _MODE)
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
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, 'not a regular file', path)
    return descriptor


def read_bounded(path: Path, longest: int) -> bytes:
    """Read a small file.

    Args:
        path (Path): The file.
        longest (int): The most bytes that it may have.

    Raises:
        OSError: If it cannot be read, is no regular file or is too long.
    """
    with open(path, 'rb', opener=read_only) as file:
        content = file.read(longest + 1)
    if len(content) > longest:
        reason = f'longer than {longest} bytes'
        raise OSError(errno.EFBIG, reason, os.fspath(path))
    return content


# A file, or the bytes of a download.
Source = Union['OpenFile', io.BytesIO]
_PIECE = 4 << 20
# Pieces that may wait to be digested.
_BACKLOG = 4


class Malformed(ValueError):
    """The content of a file is damaged, or of another format."""


class Truncated(Malformed):
    """The end of the file is missing.

    Args:
        size (int): Bytes that are there.
    """

    def __init__(self, size: int) -> None:
        super().__init__(f'its end is missing after {size} bytes')


class OpenFile(io.FileIO):
    """A regular file, opened once for reading.

    Args:
        path (str or Path): Its name. Links are followed, but a pipe or a
            device, which could block, is not opened.

    Raises:
        OSError: If it cannot be opened, or is not a regular file.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path, opener=read_only)
        self._before = self._stamp()

    def _stamp(self) -> tuple[int, int]:
        status = os.fstat(self.fileno())
        return status.st_size, status.st_mtime_ns

    def check_unchanged(self) -> None:
        """Raise :class:`Malformed` if it was written to since its opening."""
        if self._stamp() != self._before:
            raise Malformed('it was changed while it was read')


def size_of(file: Source) -> int:
    """Return the size of a file in bytes."""
    return file.seek(0, io.SEEK_END)


def read_at(file: Source, offset: int, count: int) -> bytes:
    """Read exactly ``count`` bytes, or raise :class:`Truncated`."""
    size = size_of(file)
    if offset < 0 or not 0 <= count <= size - offset:
        raise Truncated(size)
    buffer = bytearray(count)
    _read_into(file, offset, memoryview(buffer))
    return bytes(buffer)


def _read_into(file: Source, offset: int, target: memoryview) -> None:
    file.seek(offset)
    while len(target):
        count = file.readinto(target)
        if not count:
            raise Truncated(size_of(file))
        target = target[count:]


class Sums(NamedTuple):
    """What was computed of the bytes that were read.

    Args:
        sha256 (str): The digest of the whole file; '' without one.
        crcs (list[int]): The CRC-32 of each buffer; zeros without them.
    """

    sha256: str
    crcs: list[int]


def read_ranges(
    file: Source,
    targets: Sequence[tuple[int, memoryview]],
    with_digest: bool = False,
    with_crcs: bool = False,
) -> Sums:
    """Fill buffers in one pass over a file.

    Args:
        file (Source): The file.
        targets (Sequence): Offsets and buffers, in the order of the file,
            which do not overlap.
        with_digest (bool): Whether to read all of the file and digest the
            very bytes that went into the buffers. Defaults to False.
        with_crcs (bool): Whether to compute the CRC-32 of each buffer.
            Defaults to False.
    """
    digest, crcs = hashlib.sha256(), [0] * len(targets)

    def add_crc(number: int, piece: memoryview) -> None:
        crcs[number] = zlib.crc32(piece, crcs[number])

    position, waiting = 0, []
    end = size_of(file), memoryview(b'')
    # One thread beside the reading: the pieces must stay in order.
    with ThreadPoolExecutor(1, 'mmstable digest') as pool:
        for number, (offset, target) in enumerate([*targets, end]):
            position = position if with_digest else offset
            while position < offset + len(target):
                is_gap = position < offset
                if is_gap:
                    count = min(_PIECE, offset - position)
                    piece = memoryview(bytearray(count))
                else:
                    start = position - offset
                    piece = target[start : start + _PIECE]
                _read_into(file, position, piece)
                if with_digest:
                    waiting.append(pool.submit(digest.update, piece))
                if with_crcs and not is_gap:
                    waiting.append(pool.submit(add_crc, number, piece))
                while len(waiting) > _BACKLOG:
                    waiting.pop(0).result()
                position += len(piece)
    return Sums(digest.hexdigest() if with_digest else '', crcs)


_SUFFIX = '.mmstable-tmp'
# Machine, process and a random token.
_NAME = re.compile(r'\.([0-9a-f]{8})-(\d{1,9})-[0-9a-f]{32}\.mmstable-tmp')
_MACHINE = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
# Seconds without a change after which no process is writing a file.
_ABANDONED = 24 * 3600.0
# Temporary files that this process is writing.
_OPEN: set[str] = set()
# Small enough to be still in the cache when it is written after hashing.
_COPY_BYTES = 1 << 20


class HashedStream:
    """A file that counts and digests the bytes written to it.

    Args:
        file (IO[bytes]): The file.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0
        # torch.save replaces it with an error of its own.
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        """Write all of ``data``."""
        view = memoryview(data).cast('B')
        try:
            for start in range(0, len(view), _COPY_BYTES):
                piece = view[start : start + _COPY_BYTES]
                self._hash.update(piece)
                self._file.write(piece)
        except OSError as error:
            self.error = error
            raise
        self.size += len(view)
        return len(view)

    def flush(self) -> None:
        """Flush to the operating system."""
        self._file.flush()

    def sha256(self) -> str:
        """Return the digest of all bytes written."""
        return self._hash.hexdigest()


@contextmanager
def atomic_file(
    path: Path, verify: Callable[[Path], None] | None = None
) -> Iterator[HashedStream]:
    """Open a file that is renamed to its name once it is complete on disk.

    On any error the temporary file is removed and ``path`` is as before.

    Args:
        path (Path): The name, in a folder that exists.
        verify (Callable, optional): Raises if the complete file must not get
            its name. Defaults to None.
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
        written = Path(file.name)
        size = written.stat().st_size
        if size != stream.size:
            raise OSError(f'{stream.size} bytes were written, {size} arrived')
        if verify is not None:
            verify(written)
    sync_folder(path.parent)


def replace_text(
    path: Path, text: str, encoding: str | None = None, sync: bool = True
) -> None:
    """Write a small text file, complete or not at all.

    After a power cut the name may still stand for the old file. A link of
    that name is replaced; its target is left alone.

    Args:
        path (Path): The file.
        text (str): Its content.
        encoding (str, optional): As in :func:`open`. Defaults to None.
        sync (bool): Whether to wait for the disk: without, the file may be
            empty after a power cut. Defaults to True.
    """
    with _replacement(path, 'w', encoding, sync) as file:
        file.write(text)


@contextmanager
def _replacement(
    path: Path, mode: str, encoding: str | None = None, sync: bool = True
) -> Iterator[IO[Any]]:
    token = secrets.token_hex(16)
    temporary = path.with_name(f'.{_MACHINE}-{os.getpid()}-{token}{_SUFFIX}')
    _OPEN.add(temporary.name)
    try:
        with open(temporary, mode, opener=create, encoding=encoding) as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    finally:
        _OPEN.discard(temporary.name)


def sync_folder(folder: Path) -> None:
    """Make created and removed names survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files that a killed process has left behind.

    A file is left behind if its process has ended on this machine, or if it
    has not changed for a day. Links are removed, never followed.

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
        # In a container, an earlier process may have had this number.
        return path.name not in _OPEN
    return not is_alive(pid)
