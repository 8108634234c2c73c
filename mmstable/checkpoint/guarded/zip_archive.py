"""Checkpoints as torch writes them since 1.6: a zip archive."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

from mmstable.checkpoint.guarded.errors import Malformed, Refused, Truncated
from mmstable.checkpoint.guarded.nodes import StorageNode, Tally
from mmstable.checkpoint.guarded.open_file import ReadableFile, read_ranges
from mmstable.checkpoint.guarded.pickle_machine import PickleMachine
from mmstable.checkpoint.guarded.storages import (
    allocate,
    describe_storage,
    remember_storage,
)

MAGIC = b'PK\x03\x04'
_PICKLE, _PROGRAM = '/data.pkl', '/constants.pkl'
_HEADER = struct.Struct('<4s22xHH')
_LARGEST_NOTE = 64


@dataclass(frozen=True)
class Record:
    """A file inside the archive.

    Args:
        offset (int): Its first byte in the archive.
        size (int): Its length.
        crc (int): Its check sum, as the archive has it.
    """

    offset: int
    size: int
    crc: int


class ZipArchive:
    """A checkpoint whose storages can be filled.

    Args:
        file (ReadableFile): The open file.

    Raises:
        Malformed: If it is no archive of torch.
    """

    def __init__(self, file: ReadableFile) -> None:
        self._file = file
        self._records = _read_directory(file)
        self._prefix = _find_prefix(self._records)
        self._check_byte_order()

    def read_tree(self, tally: Tally) -> Any:
        """The pickled object, in built-in types and nodes."""
        record = self._records[self._prefix + _PICKLE]
        data = self._file.read_at(record.offset, record.size)
        # The only record that is used without being part of a storage.
        if zlib.crc32(data) != record.crc:
            raise Malformed('data.pkl differs from its check sum')

        def find_storage(persistent_id: Any) -> StorageNode:
            return self._find_storage(persistent_id, tally.storages)

        source = BytesInMemory(data)
        return PickleMachine(source, tally, find_storage).load()

    def fill(self, tally: Tally, with_digest: bool, check: bool) -> str:
        """Read all storages.

        Args:
            tally (Tally): What was read by :meth:`read_tree`.
            with_digest (bool): Whether to digest the file on the way.
            check (bool): Whether to compare check sums.

        Returns:
            str: The digest; '' without one.
        """
        buffers = []
        for key, node in tally.storages.items():
            record = self._records[f'{self._prefix}/data/{key}']
            buffers.append((record, allocate(node)))
        buffers.sort(key=lambda pair: pair[0].offset)
        targets = [(record.offset, buffer) for record, buffer in buffers]
        digest = read_ranges(self._file, targets, with_digest)
        if check:
            for record, buffer in buffers:
                if zlib.crc32(buffer) != record.crc:
                    raise Malformed('a tensor differs from its check sum')
        return digest

    def _find_storage(
        self, persistent_id: Any, known: dict[str, StorageNode]
    ) -> StorageNode:
        described = describe_storage(persistent_id, 5)
        record = self._records.get(f'{self._prefix}/data/{described.key}')
        if record is None or described.nbytes > record.size:
            raise Refused('a storage that is not in the file')
        described.nbytes = record.size
        return remember_storage(described, known)

    def _check_byte_order(self) -> None:
        record = self._records.get(f'{self._prefix}/byteorder')
        if record is None:
            return
        note = self._file.read_at(
            record.offset, min(record.size, _LARGEST_NOTE)
        )
        if note != b'little':
            raise Malformed('written in another byte order than little')


class BytesInMemory:
    """A pickle that is in memory.

    Args:
        data (bytes): The pickle.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def read(self, count: int) -> bytes:
        """Exactly so many bytes."""
        start, end = self._position, self._position + count
        if end > len(self._data):
            raise Malformed('the pickle is cut off')
        self._position = end
        return self._data[start:end]

    def read_line(self, longest: int) -> bytes:
        """Up to and without a line end."""
        start = self._position
        end = self._data.find(b'\n', start, start + longest)
        if end < 0:
            raise Malformed('a line without an end')
        self._position = end + 1
        return self._data[start:end]


def _read_directory(file: ReadableFile) -> dict[str, Record]:
    if not zipfile.is_zipfile(_Seekable(file)):
        raise Truncated(file.size)
    try:
        with zipfile.ZipFile(_Seekable(file)) as archive:
            entries = archive.infolist()
    except Malformed:
        raise
    except Exception as error:
        # What damage does to the reader depends on where it is.
        raise Malformed(f'no directory: {type(error).__name__}') from error
    if any(entry.filename.endswith(_PROGRAM) for entry in entries):
        raise Malformed('a program (TorchScript), not a checkpoint')
    records: dict[str, Record] = {}
    for entry in entries:
        if entry.compress_type or entry.flag_bits & 1:
            raise Malformed('compressed or encrypted, which torch never does')
        if entry.filename in records:
            raise Malformed('two records of one name')
        start = _find_data(file, entry)
        if entry.file_size > file.size - start:
            raise Malformed('a record beyond the end of the file')
        records[entry.filename] = Record(start, entry.file_size, entry.CRC)
    _refuse_overlaps(list(records.values()))
    return records


def _find_data(file: ReadableFile, entry: zipfile.ZipInfo) -> int:
    header = file.read_at(entry.header_offset, _HEADER.size)
    magic, name, extra = _HEADER.unpack(header)
    if magic != MAGIC:
        raise Malformed('a record without a header')
    return entry.header_offset + _HEADER.size + name + extra


def _refuse_overlaps(records: list[Record]) -> None:
    end = 0
    for record in sorted(records, key=lambda r: (r.offset, r.size)):
        if record.offset < end:
            raise Malformed('records that overlap')
        end = record.offset + record.size


def _find_prefix(records: dict[str, Record]) -> str:
    found = [name for name in records if name.endswith(_PICKLE)]
    if len(found) != 1:
        raise Malformed('no archive of torch: it has no data.pkl')
    return found[0][: -len(_PICKLE)]


class _Seekable(io.RawIOBase):
    """An open file for the standard library."""

    def __init__(self, file: ReadableFile) -> None:
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._position, self._file.size)[whence]
        if base + offset < 0:
            raise OSError('before the beginning')
        self._position = base + offset
        return self._position

    def read(self, count: int = -1) -> bytes:
        left = max(self._file.size - self._position, 0)
        count = left if count is None or count < 0 else min(count, left)
        data = self._file.read_at(self._position, count)
        self._position += count
        return data
