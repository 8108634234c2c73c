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
from mmstable.checkpoint.reader.unpickler import CutOff, Unpickler
from mmstable.io.files import (
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
    reading = _Reading(
        file, map_location, values_up_to, with_digest, check_sums
    )
    content = reading.archive() if is_archive(file) else reading.legacy()
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
    end = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        if info.compress_type or info.flag_bits & 1:
            raise Malformed('compressed or encrypted, which torch never does')
        if info.filename in entries:
            raise Malformed('two records of one name')
        header = read_at(file, info.header_offset, _HEADER.size)
        magic, name, extra = _HEADER.unpack(header)
        if magic != _MAGIC:
            raise Malformed('a record without a header')
        if info.header_offset < end:
            raise Malformed('records that overlap')
        start = info.header_offset + _HEADER.size + name + extra
        entries[info.filename] = _Entry(start, info.file_size, info.CRC)
        end = start + info.file_size
    if end > size_of(file):
        raise Malformed('a record beyond the end of the file')
    if sum(name.endswith(_PICKLE) for name in entries) != 1:
        raise Malformed('no archive of torch: it has no data.pkl')
    return entries


@dataclass
class _Reading:
    """One way through a file; see :func:`read` for the first five.

    Args:
        known (dict): Storages that the pickle has referred to, by key.
        sizes (dict, optional): Of the storages that the file has.
        contents (dict): Their bytes.
    """

    file: Source
    map_location: MapLocation
    values_up_to: float
    with_digest: bool
    check_sums: bool
    known: dict[str, Storage] = field(default_factory=dict)
    sizes: dict[str, int] | None = None
    contents: dict[str, torch.Tensor] = field(default_factory=dict)

    def archive(self) -> Content:
        """Read a zip archive."""
        entries = read_directory(self.file)
        (pickled,) = [name for name in entries if name.endswith(_PICKLE)]
        folder = pickled[: -len(_PICKLE)]
        order = entries.get(f'{folder}/byteorder')
        if order and read_at(self.file, *order[:2]) != b'little':
            raise Malformed('written in another byte order than little')
        prefix = f'{folder}/data/'
        sha256 = self._read_storages(
            {
                name[len(prefix) :]: entry
                for name, entry in entries.items()
                if name.startswith(prefix)
            }
        )
        data = read_at(self.file, *entries[pickled][:2])
        if entries[pickled].crc not in (zlib.crc32(data), _NO_CRC):
            raise Malformed('data.pkl differs from its check sum')
        source = io.BytesIO(data)
        value = Unpickler(source, size_of(self.file), self._find).load()
        return Content(value, sha256)

    def legacy(self) -> Content:
        """Read pickles that follow each other, and storages behind these."""
        try:
            (magic, version, machine), start = self._unpickle(0, 3)
        except (Malformed, Refused):
            magic = None
        if magic != _LEGACY_MAGIC:
            raise Malformed('no checkpoint of torch')
        if version != _LEGACY_VERSION:
            raise Malformed('an unknown version of the format')
        if type(machine) is not dict or machine.get('little_endian') is False:
            raise Malformed('written in another byte order than little')
        (_, order), position = self._unpickle(start, 2)
        exact(order, list, 'a list of storages')
        keys = [exact(key, str, 'the key of a storage') for key in order]
        if sorted(keys) != sorted(self.known):
            raise Malformed('other storages than the object refers to')
        entries: dict[str, _Entry] = {}
        for key in keys:
            nbytes = self.known[key].nbytes
            (count,) = _COUNT.unpack(read_at(self.file, position, _COUNT.size))
            if count * self.known[key].dtype.itemsize != nbytes:
                raise Malformed('a storage of another length')
            entries[key] = _Entry(position + _COUNT.size, nbytes, _NO_CRC)
            position += _COUNT.size + nbytes
        sha256 = self._read_storages(entries)
        # Only the object tells the types of its storages, which follow it.
        # With these at hand it is read again.
        self.known = {}
        (value,), _ = self._unpickle(start, 1)
        return Content(value, sha256)

    def _unpickle(self, start: int, count: int) -> tuple[list[Any], int]:
        """Objects that follow each other, and where they end."""
        size = size_of(self.file)
        self.file.seek(start)
        stream = io.BufferedReader(self.file)  # type: ignore[type-var]
        unpickler = Unpickler(stream, size, self._find)
        try:
            return [unpickler.load() for _ in range(count)], stream.tell()
        except CutOff as error:
            raise Truncated(size) from error
        finally:
            # It would close the file when it is gone.
            stream.detach()

    def _read_storages(self, entries: dict[str, _Entry]) -> str:
        """Read what is small enough, and give the digest of the file."""
        size = size_of(self.file)
        if any(entry.offset + entry.size > size for entry in entries.values()):
            raise Truncated(size)
        self.sizes = {key: entry.size for key, entry in entries.items()}
        small = [k for k in entries if self.sizes[k] <= self.values_up_to]
        for key in small:
            self.contents[key] = torch.empty(
                self.sizes[key], dtype=torch.uint8
            )
        sums = read_ranges(
            self.file,
            [
                (entries[k].offset, self.contents[k].numpy().data)
                for k in small
            ],
            self.with_digest,
            self.check_sums,
        )
        for key, crc in zip(small, sums.crcs) if self.check_sums else ():
            if entries[key].crc not in (crc, _NO_CRC):
                raise Malformed('a tensor differs from its check sum')
        return sums.sha256

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
            data: Any = None
            if key in self.contents:
                # To its device, as `torch.load` does.
                bring: Any = torch.serialization._get_restore_location
                content = self.contents[key].untyped_storage()
                data = bring(self.map_location)(content, location)
                data = getattr(data, '_untyped_storage', data)
            self.known[key] = Storage(dtype, nbytes, data)
        if self.known[key].dtype != dtype or nbytes > self.known[key].nbytes:
            raise Refused('a storage with two descriptions')
        return self.known[key]
