"""One open file: what is checked is what is read."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from mmstable.checkpoint.guarded.errors import Truncated
from mmstable.files import read_only

_PIECE = 4 << 20
# Pieces that wait to be digested.
_BACKLOG = 4


class ReadableFile(Protocol):
    """What a checkpoint is read from."""

    size: int

    def read_at(self, offset: int, count: int) -> bytes:
        """Exactly so many bytes, or :class:`Truncated`."""

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill a buffer, or :class:`Truncated`."""


class MemoryFile:
    """The content of a file that is in memory.

    Args:
        data (bytes): The content.
    """

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.size = len(data)

    def read_at(self, offset: int, count: int) -> bytes:
        """Exactly so many bytes."""
        if offset < 0 or count < 0 or offset + count > self.size:
            raise Truncated(self.size)
        return bytes(self._data[offset : offset + count])

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill a buffer."""
        target[:] = self.read_at(offset, len(target))


class OpenFile:
    """A regular file, opened once.

    Args:
        path (str or Path): Its name. Links are followed, but nothing that
            could block, as a pipe, is opened.

    Raises:
        OSError: If it cannot be opened, or is no regular file.
    """

    def __init__(self, path: str | Path) -> None:
        self._file = io.FileIO(path, opener=read_only)
        self.size = os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Close it."""
        self._file.close()

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def read_at(self, offset: int, count: int) -> bytes:
        """Exactly so many bytes.

        Raises:
            Truncated: If there are fewer.
        """
        if offset < 0 or count < 0 or offset + count > self.size:
            raise Truncated(self.size)
        buffer = bytearray(count)
        self.read_into(offset, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill a buffer.

        Raises:
            Truncated: If the file has become shorter.
        """
        self._file.seek(offset)
        while len(target):
            count = self._file.readinto(target)
            if not count:
                raise Truncated(self.size)
            target = target[count:]


class Digest:
    """The SHA-256 of a file, computed beside reading it."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._pool = ThreadPoolExecutor(1, 'mmstable digest')
        self._waiting: list[Future[None]] = []

    def add(self, piece: bytes | memoryview) -> None:
        """Add the next piece, which must not change any more."""
        self._waiting.append(self._pool.submit(self._hash.update, piece))
        while len(self._waiting) > _BACKLOG:
            self._waiting.pop(0).result()

    def finish(self) -> str:
        """The digest of all pieces."""
        self._pool.shutdown(wait=True)
        for future in self._waiting:
            future.result()
        return self._hash.hexdigest()


def read_ranges(
    file: ReadableFile,
    targets: Sequence[tuple[int, memoryview]],
    with_digest: bool,
) -> str:
    """Fill buffers from one pass over a file.

    Args:
        file (ReadableFile): The file.
        targets (Sequence): Offsets and buffers, in the order of the file,
            which do not overlap.
        with_digest (bool): Whether to read all of the file, and give its
            SHA-256: that of the very bytes in the buffers.

    Returns:
        str: The digest; '' without one.
    """
    if not with_digest:
        for offset, target in targets:
            file.read_into(offset, target)
        return ''
    digest = Digest()
    try:
        position = 0
        for offset, target in targets:
            _digest_gap(file, position, offset, digest)
            for piece_at in range(0, len(target), _PIECE):
                piece = target[piece_at : piece_at + _PIECE]
                file.read_into(offset + piece_at, piece)
                digest.add(piece)
            position = offset + len(target)
        _digest_gap(file, position, file.size, digest)
    finally:
        result = digest.finish()
    return result


def _digest_gap(
    file: ReadableFile, start: int, end: int, digest: Digest
) -> None:
    for offset in range(start, end, _PIECE):
        digest.add(file.read_at(offset, min(_PIECE, end - offset)))
