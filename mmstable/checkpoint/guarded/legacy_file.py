"""Checkpoints as torch wrote them before 1.6, and model zoos still do.

Five pickles follow each other: a magic number, a version, facts about the
machine, the object, and the order of its storages. Their bytes come last.
"""

from __future__ import annotations

import struct
from typing import Any

from mmstable.checkpoint.guarded.checks import exact
from mmstable.checkpoint.guarded.errors import Malformed, Truncated
from mmstable.checkpoint.guarded.nodes import StorageNode, Tally
from mmstable.checkpoint.guarded.open_file import ReadableFile, read_ranges
from mmstable.checkpoint.guarded.pickle_machine import PickleMachine
from mmstable.checkpoint.guarded.storages import (
    allocate,
    describe_storage,
    remember_storage,
)

_MAGIC = 0x1950A86A20F9469CFC6C
_VERSION = 1001
_READ_AHEAD = 1 << 16
_COUNT = struct.Struct('<q')


class LegacyFile:
    """A checkpoint in torch's old format.

    Args:
        file (ReadableFile): The open file.

    Raises:
        Malformed: If it is something else.
    """

    def __init__(self, file: ReadableFile) -> None:
        self._file = file
        self._source = _Stream(file)
        self._allocated = 0
        head = Tally(file.size)
        if self._read_magic(head) != _MAGIC:
            raise Malformed('no checkpoint of torch')
        if self._read_pickle(head) != _VERSION:
            raise Malformed('an unknown version of the format')
        machine = self._read_pickle(head)
        if type(machine) is not dict or machine.get('little_endian') is False:
            raise Malformed('written in another byte order than little')

    def read_tree(self, tally: Tally) -> Any:
        """The pickled object, in built-in types and nodes."""

        def find_storage(persistent_id: Any) -> StorageNode:
            return self._find_storage(persistent_id, tally.storages)

        return PickleMachine(self._source, tally, find_storage).load()

    def fill(self, tally: Tally, with_digest: bool, check: bool) -> str:
        """Read all storages; there are no check sums to compare.

        Args:
            tally (Tally): What was read by :meth:`read_tree`.
            with_digest (bool): Whether to digest the file on the way.
            check (bool): Ignored.

        Returns:
            str: The digest; '' without one.
        """
        order = self._read_pickle(Tally(self._file.size))
        keys = [
            exact(key, str, 'the key of a storage')
            for key in exact(order, list, 'a list of storages')
        ]
        if sorted(keys) != sorted(tally.storages):
            raise Malformed('other storages than the object refers to')
        position = self._source.position
        targets = []
        for key in keys:
            node = tally.storages[key]
            (count,) = _COUNT.unpack(self._file.read_at(position, _COUNT.size))
            position += _COUNT.size
            if count * node.dtype.itemsize != node.nbytes:
                raise Malformed('a storage of another length')
            if position + node.nbytes > self._file.size:
                raise Truncated(self._file.size)
            targets.append((position, allocate(node)))
            position += node.nbytes
        return read_ranges(self._file, targets, with_digest)

    def _read_magic(self, tally: Tally) -> Any:
        try:
            return self._read_pickle(tally)
        except Malformed:
            return None

    def _read_pickle(self, tally: Tally) -> Any:
        return PickleMachine(self._source, tally).load()

    def _find_storage(
        self, persistent_id: Any, known: dict[str, StorageNode]
    ) -> StorageNode:
        described = describe_storage(persistent_id, 6)
        if described.key not in known:
            self._allocated += described.nbytes
            if self._allocated > self._file.size:
                raise Truncated(self._file.size)
        return remember_storage(described, known)


class _Stream:
    """Reads pickles one after the other."""

    def __init__(self, file: ReadableFile) -> None:
        self._file = file
        self.position = 0
        self._buffer = b''
        self._start = 0

    def read(self, count: int) -> bytes:
        """Exactly so many bytes."""
        at = self.position - self._start
        if at + count > len(self._buffer):
            self._refill(count)
            at = 0
        self.position += count
        return self._buffer[at : at + count]

    def read_line(self, longest: int) -> bytes:
        """Up to and without a line end."""
        left = min(longest, self._file.size - self.position)
        line, found, _ = self._file.read_at(self.position, left).partition(
            b'\n'
        )
        if not found:
            raise Malformed('a line without an end')
        self.position += len(line) + 1
        return line

    def _refill(self, count: int) -> None:
        left = self._file.size - self.position
        if count > left:
            raise Truncated(self._file.size)
        self._start = self.position
        self._buffer = self._file.read_at(
            self.position, min(max(count, _READ_AHEAD), left)
        )
