"""One open file: what is checked is what is read."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Union

from mmstable.files import read_only

# A file, or the bytes of a download.
Source = Union['OpenFile', io.BytesIO]
_PIECE = 4 << 20
# Pieces that may wait to be digested.
_BACKLOG = 4


class Malformed(ValueError):
    """The content of a file is damaged, or not what it has to be."""


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
    """Bytes of a file."""
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


def read_ranges(
    file: Source,
    targets: Sequence[tuple[int, memoryview]],
    with_digest: bool,
) -> str:
    """Fill buffers in one pass over a file.

    Args:
        file (Source): The file.
        targets (Sequence): Offsets and buffers, in the order of the file,
            which do not overlap.
        with_digest (bool): Whether to read all of the file and digest the
            very bytes that went into the buffers.

    Returns:
        str: The SHA-256 of the file; '' without a digest.
    """
    if not with_digest:
        for offset, target in targets:
            _read_into(file, offset, target)
        return ''
    digest, position, waiting = hashlib.sha256(), 0, []
    end = size_of(file), memoryview(b'')
    # The digest is computed beside the reading.
    with ThreadPoolExecutor(1, 'mmstable digest') as pool:
        for offset, target in [*targets, end]:
            while position < offset + len(target):
                if position < offset:
                    count = min(_PIECE, offset - position)
                    piece = memoryview(bytearray(count))
                else:
                    start = position - offset
                    piece = target[start : start + _PIECE]
                _read_into(file, position, piece)
                waiting.append(pool.submit(digest.update, piece))
                if len(waiting) > _BACKLOG:
                    waiting.pop(0).result()
                position += len(piece)
    return digest.hexdigest()
