"""Read a whole checkpoint from one open file.

Since 1.6 torch writes a zip archive; before, and in model zoos still, five
pickles that follow each other, with the storages behind them.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple, Union

import torch

from mmstable.checkpoint.reader import rebuild
from mmstable.checkpoint.reader.rebuild import Refused, Storage, exact
from mmstable.checkpoint.reader.unpickler import Budget, Unpickler
from mmstable.open_file import (
    Malformed,
    OpenFile,
    Source,
    Truncated,
    read_at,
    read_ranges,
    size_of,
)

MapLocation = Union[Callable[..., Any], torch.device, str, dict, None]

_MAGIC = b'PK\x03\x04'
_PICKLE, _PROGRAM = '/data.pkl', '/constants.pkl'
_HEADER = struct.Struct('<4s22xHH')
_LEGACY_MAGIC, _LEGACY_VERSION = 0x1950A86A20F9469CFC6C, 1001
_COUNT = struct.Struct('<q')
_LONGEST_LINE = 1024
_MOST_RECORDS = 200_000
# As `torch.serialization.set_crc32_options(False)` leaves it.
_NO_CRC = 0


@dataclass(frozen=True)
class Content:
    """What a file holds.

    Args:
        value (Any): The saved object.
        sha256 (str): The digest of the file; '' if it was not asked for.
    """

    value: Any
    sha256: str


def read(
    file: Source,
    map_location: MapLocation = 'cpu',
    values_up_to: float = math.inf,
    with_digest: bool = False,
    check_sums: bool = False,
) -> Content:
    """Read a checkpoint.

    Args:
        file (Source): The open file.
        map_location (Any): As in ``torch.load``. Defaults to 'cpu'.
        values_up_to (float): Bytes of the largest storage to read; tensors
            in larger ones are on the device 'meta'. Defaults to inf.
        with_digest (bool): Whether to digest what is read. Defaults to
            False.
        check_sums (bool): Whether to compare the check sums inside the file,
            if there are any. Defaults to False.

    Raises:
        Malformed: If it is damaged, or something else.
        Refused: If it is more than data.
    """
    reading = _Reading(file, map_location, values_up_to, with_digest)
    if is_archive(file):
        content = reading.archive(check_sums)
    else:
        content = reading.legacy()
    if isinstance(file, OpenFile):
        file.check_unchanged()
    return content


def is_archive(file: Source) -> bool:
    """Whether a file begins as an archive does."""
    file.seek(0)
    return file.read(len(_MAGIC)) == _MAGIC


class _Entry(NamedTuple):
    """A record of an archive: its bytes, and their check sum."""

    offset: int
    size: int
    crc: int


def read_directory(file: Source) -> dict[str, _Entry]:
    """The records of an archive of torch, by name.

    Raises:
        Malformed: If it is something else, or records overlap.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
    except Exception as error:
        # What damage does to the standard library depends on where it is.
        if not zipfile.is_zipfile(file):
            raise Truncated(size_of(file)) from error
        raise Malformed(f'no directory: {type(error).__name__}') from error
    if len(infos) > _MOST_RECORDS:
        raise Malformed(f'more than {_MOST_RECORDS} records')
    if any(info.filename.endswith(_PROGRAM) for info in infos):
        raise Malformed('a program (TorchScript), not a checkpoint')
    entries: dict[str, _Entry] = {}
    for info in infos:
        if info.compress_type or info.flag_bits & 1:
            raise Malformed('compressed or encrypted, which torch never does')
        if info.filename in entries:
            raise Malformed('two records of one name')
        header = read_at(file, info.header_offset, _HEADER.size)
        magic, name, extra = _HEADER.unpack(header)
        if magic != _MAGIC:
            raise Malformed('a record without a header')
        start = info.header_offset + _HEADER.size + name + extra
        entries[info.filename] = _Entry(start, info.file_size, info.CRC)
    end = 0
    for entry in sorted(entries.values()):
        if entry.offset < end:
            raise Malformed('records that overlap')
        end = entry.offset + entry.size
    if end > size_of(file):
        raise Malformed('a record beyond the end of the file')
    if sum(name.endswith(_PICKLE) for name in entries) != 1:
        raise Malformed('no archive of torch: it has no data.pkl')
    return entries


class _Stream(io.BufferedReader):
    """Pickles that follow each other, from a position on."""

    def __init__(self, file: Source, size: int, position: int = 0) -> None:
        file.seek(position)
        super().__init__(file, 1 << 16)  # type: ignore[arg-type]
        self._size = size
        self._budget = Budget(size)

    def read(self, count: int | None = -1) -> bytes:
        """Exactly so many bytes: nothing is allocated for others."""
        if count is None or not 0 <= count <= self._size - self.tell():
            raise Truncated(self._size)
        return super().read(count)

    def readline(self, size: int | None = -1) -> bytes:
        """The rest of a line: names are short."""
        return super().readline(_LONGEST_LINE)

    def load(self, find_storage: Any = None) -> Any:
        """Read the next pickle."""
        return Unpickler(self, self._budget, find_storage).load()


@dataclass
class _Reading:
    """One way through a file; see :func:`read` for the first four.

    Args:
        known (dict): Storages that the pickle has referred to, by key.
        sizes (dict, optional): Of the storages that the file has.
        contents (dict): Their bytes.
    """

    file: Source
    map_location: MapLocation
    values_up_to: float
    with_digest: bool
    known: dict[str, Storage] = field(default_factory=dict)
    sizes: dict[str, int] | None = None
    contents: dict[str, torch.Tensor] = field(default_factory=dict)

    def archive(self, check_sums: bool) -> Content:
        """Read a zip archive."""
        entries = read_directory(self.file)
        (pickled,) = [name for name in entries if name.endswith(_PICKLE)]
        folder = pickled[: -len(_PICKLE)]
        order = entries.get(f'{folder}/byteorder')
        if order and read_at(self.file, *order[:2]) != b'little':
            raise Malformed('written in another byte order than little')
        prefix = f'{folder}/data/'
        found = {
            name[len(prefix) :]: entries[name]
            for name in sorted(entries, key=entries.__getitem__)
            if name.startswith(prefix)
        }
        self.sizes = {key: entry.size for key, entry in found.items()}
        buffers = [
            (entry, self._allocate(key, entry.size))
            for key, entry in found.items()
            if entry.size <= self.values_up_to
        ]
        targets = [(entry.offset, buffer) for entry, buffer in buffers]
        sha256 = read_ranges(self.file, targets, self.with_digest)
        for entry, buffer in buffers if check_sums else ():
            if entry.crc not in (zlib.crc32(buffer), _NO_CRC):
                raise Malformed('a tensor differs from its check sum')
        data = read_at(self.file, *entries[pickled][:2])
        if entries[pickled].crc not in (zlib.crc32(data), _NO_CRC):
            raise Malformed('data.pkl differs from its check sum')
        budget = Budget(size_of(self.file))
        source = io.BytesIO(data)
        return Content(Unpickler(source, budget, self._find).load(), sha256)

    def legacy(self) -> Content:
        """Read pickles that follow each other."""
        size = size_of(self.file)
        stream = _Stream(self.file, size)
        try:
            magic, version, machine = (stream.load() for _ in range(3))
        except (Malformed, Refused):
            magic = None
        if magic != _LEGACY_MAGIC:
            raise Malformed('no checkpoint of torch')
        if version != _LEGACY_VERSION:
            raise Malformed('an unknown version of the format')
        if type(machine) is not dict or machine.get('little_endian') is False:
            raise Malformed('written in another byte order than little')
        start = stream.tell()
        value = stream.load(self._find)
        order = exact(stream.load(), list, 'a list of storages')
        keys = [exact(key, str, 'the key of a storage') for key in order]
        position = stream.tell()
        # It would close the file when it is gone.
        stream.detach()
        if sorted(keys) != sorted(self.known):
            raise Malformed('other storages than the object refers to')
        self.sizes, targets = {}, []
        for key in keys:
            nbytes = self.sizes[key] = self.known[key].nbytes
            count = read_at(self.file, position, _COUNT.size)
            position += _COUNT.size
            width = self.known[key].dtype.itemsize
            if _COUNT.unpack(count)[0] * width != nbytes:
                raise Malformed('a storage of another length')
            if position + nbytes > size:
                raise Truncated(size)
            if nbytes <= self.values_up_to:
                targets.append((position, self._allocate(key, nbytes)))
            position += nbytes
        sha256 = read_ranges(self.file, targets, self.with_digest)
        # Only the object tells the types of its storages, which follow it.
        # With these at hand it is read again.
        self.known = {}
        stream = _Stream(self.file, size, start)
        value = stream.load(self._find)
        stream.detach()
        return Content(value, sha256)

    def _allocate(self, key: str, nbytes: int) -> memoryview:
        memory = self.contents[key] = torch.empty(nbytes, dtype=torch.uint8)
        return memory.numpy().data if nbytes else memoryview(b'')

    def _find(self, persistent_id: Any) -> Storage:
        # 'storage', type, key, device and number of elements; the old format
        # has None behind these.
        parts = exact(persistent_id, tuple, 'a persistent id')
        if len(parts) not in (5, 6) or parts[0] != 'storage' or any(parts[5:]):
            raise Refused('an object from outside of the file')
        kind = exact(parts[1], rebuild.Name, 'a type of storage')
        if kind not in rebuild.STORAGES:
            raise Refused('a storage of an unknown type')
        dtype = rebuild.STORAGES[kind]
        key = exact(parts[2], str, 'the key of a storage')
        location = rebuild.check_location(parts[3])
        count = rebuild.size(parts[4], 'the length of a storage')
        nbytes = count * dtype.itemsize
        if self.sizes is not None and nbytes > self.sizes.get(key, -1):
            raise Refused('a storage that is not in the file')
        if key not in self.known:
            nbytes = nbytes if self.sizes is None else self.sizes[key]
            content = self.contents.get(key)
            data = None if content is None else self._place(content, location)
            self.known[key] = Storage(dtype, nbytes, data)
        if self.known[key].dtype != dtype or nbytes > self.known[key].nbytes:
            raise Refused('a storage with two descriptions')
        return self.known[key]

    def _place(self, content: torch.Tensor, location: Any) -> Any:
        """Bring a storage to its device, as ``torch.load`` does."""
        data: Any = content.untyped_storage()
        where, placed = self.map_location, None
        if where in ('cpu', torch.device('cpu')):
            return data
        if callable(where):
            placed = where(data, location)
        elif isinstance(where, dict):
            location = where.get(location, location)
        elif where is not None:
            location = where
        if placed is None:
            restore = torch.serialization.default_restore_location
            placed = restore(data, str(location))
        return getattr(placed, '_untyped_storage', placed)
