"""Execute the opcodes of a pickle with plain data only.

All opcodes that torch and mmengine write in protocols 2 to 5 are known. A
value is a built-in of an exact type or a node; ``REDUCE``, ``NEWOBJ`` and
``BUILD`` are answered by :mod:`known_names`, which calls nothing that the
file brings along.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Protocol

from mmstable.checkpoint.guarded import known_names
from mmstable.checkpoint.guarded.errors import Malformed, Refused
from mmstable.checkpoint.guarded.nodes import (
    ConfigNode,
    CounterNode,
    Name,
    OrderedNode,
    Tally,
)

# Ten seconds of work; the largest genuine checkpoints have two million.
_MOST_OPERATIONS = 10_000_000
_LONGEST_NAME = 512
_LONGEST_INT = 64
_PROTOCOLS = range(2, 6)
_SCALARS = (str, int, bool, float, type(None), bytes)
_DICTS = (dict, OrderedNode, CounterNode, ConfigNode)


class ByteSource(Protocol):
    """Where a pickle comes from."""

    def read(self, count: int) -> bytes:
        """Exactly so many bytes, or :class:`Malformed`."""

    def read_line(self, longest: int) -> bytes:
        """Up to and without a line end, or :class:`Malformed`."""


class PickleMachine:
    """Reads one pickle.

    Args:
        source (ByteSource): Its bytes.
        tally (Tally): Counts the work, over several pickles.
        find_storage (Callable, optional): Gives the node for a persistent
            id, which only storages have. Defaults to None.
    """

    def __init__(
        self,
        source: ByteSource,
        tally: Tally,
        find_storage: Callable[[Any], Any] | None = None,
    ) -> None:
        self._read = source.read
        self._read_line = source.read_line
        self._tally = tally
        self._find_storage = find_storage
        self._stack: list[Any] = []
        self._outer: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def load(self) -> Any:
        """The object, in built-in types and nodes.

        Raises:
            Malformed: If the bytes are no pickle.
            Refused: If it is more than data.
        """
        operations = _OPERATIONS
        read, tally = self._read, self._tally
        while True:
            tally.operations += 1
            if tally.operations > _MOST_OPERATIONS:
                raise Malformed(f'more than {_MOST_OPERATIONS} operations')
            code = read(1)
            if code == b'.':
                return self._pop()
            operation = operations.get(code)
            if operation is None:
                raise Malformed(f'unknown operation {code!r}')
            operation(self)

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        if not self._stack:
            raise Malformed('nothing on the stack')
        return self._stack.pop()

    def _top(self) -> Any:
        if not self._stack:
            raise Malformed('nothing on the stack')
        return self._stack[-1]

    def _number(self, form: str, size: int) -> Any:
        return struct.unpack(form, self._read(size))[0]

    # Numbers, texts and bytes.

    def _int(self, form: str, size: int) -> None:
        self._push(self._number(form, size))

    def _long(self) -> None:
        size = self._read(1)[0]
        if size > _LONGEST_INT:
            raise Malformed(f'an integer of {size} bytes')
        self._push(int.from_bytes(self._read(size), 'little', signed=True))

    def _text(self, form: str, size: int) -> None:
        data = self._read(self._number(form, size))
        self._push(str(data, 'utf-8', 'surrogatepass'))

    def _text_of_python2(self, form: str, size: int) -> None:
        data = self._read(self._number(form, size))
        try:
            self._push(data.decode('utf-8'))
        except UnicodeDecodeError:
            self._push(data)

    def _bytes(self, form: str, size: int) -> None:
        self._push(self._read(self._number(form, size)))

    def _bytearray(self) -> None:
        self._push(bytearray(self._read(self._number('<Q', 8))))

    # Containers.

    def _mark(self) -> None:
        self._outer.append(self._stack)
        self._stack = []

    def _pop_to_mark(self) -> list[Any]:
        if not self._outer:
            raise Malformed('no mark on the stack')
        items, self._stack = self._stack, self._outer.pop()
        return items

    def _tuple(self) -> None:
        items = self._pop_to_mark()
        self._push(tuple(items))

    def _short_tuple(self, count: int) -> None:
        if len(self._stack) < count:
            raise Malformed('nothing on the stack')
        self._stack[-count:] = [tuple(self._stack[-count:])]

    def _append(self) -> None:
        item = self._pop()
        self._list().append(item)

    def _appends(self) -> None:
        items = self._pop_to_mark()
        self._list().extend(items)

    def _list(self) -> list[Any]:
        target = self._top()
        if type(target) is not list:
            raise Malformed('an element for what is no list')
        return target

    def _set_item(self) -> None:
        value = self._pop()
        self._fill([self._pop(), value])

    def _set_items(self) -> None:
        self._fill(self._pop_to_mark())

    def _fill(self, items: list[Any]) -> None:
        target = self._top()
        if type(target) not in _DICTS or len(items) % 2:
            raise Malformed('an entry for what is no dict')
        for key, value in zip(items[::2], items[1::2]):
            target[check_key(key)] = value

    def _add_items(self) -> None:
        items = self._pop_to_mark()
        target = self._top()
        if type(target) is not set:
            raise Malformed('a member for what is no set')
        target.update(map(check_key, items))

    def _frozenset(self) -> None:
        self._push(frozenset(map(check_key, self._pop_to_mark())))

    # Names, and what is made by them.

    def _global(self) -> None:
        module = self._read_line(_LONGEST_NAME)
        name = self._read_line(_LONGEST_NAME)
        self._push(known_names.find(_decode(module), _decode(name)))

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        if type(name) is not str or type(module) is not str:
            raise Malformed('a name that is no text')
        self._push(known_names.find(module, name))

    def _reduce(self) -> None:
        args, callee = self._pop(), self._pop()
        self._push(known_names.call(_name(callee), _args(args)))

    def _new_object(self) -> None:
        args, callee = self._pop(), self._pop()
        self._push(known_names.new(_name(callee), _args(args)))

    def _build(self) -> None:
        state = self._pop()
        known_names.fill(self._top(), state)

    def _persistent_id(self) -> None:
        if self._find_storage is None:
            raise Refused('an object from outside of the file')
        self._push(self._find_storage(self._pop()))

    # The memo.

    def _put(self, form: str, size: int) -> None:
        self._memo[self._number(form, size)] = self._top()

    def _memoize(self) -> None:
        self._memo[len(self._memo)] = self._top()

    def _get(self, form: str, size: int) -> None:
        index = self._number(form, size)
        if index not in self._memo:
            raise Malformed(f'no object {index}')
        self._push(self._memo[index])

    def _protocol(self) -> None:
        protocol = self._read(1)[0]
        if protocol not in _PROTOCOLS:
            raise Malformed(f'pickle protocol {protocol}')


def check_key(key: Any) -> Any:
    """A key of a dict or a member of a set: scalars, or a tuple of them.

    Hashing anything deeper could exhaust the stack of the process.
    """
    if type(key) in _SCALARS:
        return key
    if type(key) is tuple and all(type(item) in _SCALARS for item in key):
        return key
    raise Malformed(f'a {type(key).__name__} as a key')


def _decode(line: bytes) -> str:
    try:
        return line.decode('ascii')
    except UnicodeDecodeError:
        raise Malformed('a name that is no text') from None


def _name(callee: Any) -> Name:
    if type(callee) is not Name:
        raise Refused(f'a call of a {type(callee).__name__}')
    return callee


def _args(args: Any) -> tuple[Any, ...]:
    if type(args) is not tuple:
        raise Malformed('arguments that are no tuple')
    return args


_Machine = PickleMachine
_OPERATIONS: dict[bytes, Callable[[PickleMachine], Any]] = {
    b'N': lambda m: m._push(None),
    b'\x88': lambda m: m._push(True),
    b'\x89': lambda m: m._push(False),
    b'J': lambda m: m._int('<i', 4),
    b'K': lambda m: m._int('<B', 1),
    b'M': lambda m: m._int('<H', 2),
    b'G': lambda m: m._int('>d', 8),
    b'\x8a': _Machine._long,
    b'X': lambda m: m._text('<I', 4),
    b'\x8c': lambda m: m._text('<B', 1),
    b'\x8d': lambda m: m._text('<Q', 8),
    b'U': lambda m: m._text_of_python2('<B', 1),
    b'T': lambda m: m._text_of_python2('<I', 4),
    b'C': lambda m: m._bytes('<B', 1),
    b'B': lambda m: m._bytes('<I', 4),
    b'\x8e': lambda m: m._bytes('<Q', 8),
    b'\x96': lambda m: m._bytearray(),
    b'(': _Machine._mark,
    b'0': lambda m: m._pop(),
    b'1': lambda m: m._pop_to_mark(),
    b')': lambda m: m._push(()),
    b't': _Machine._tuple,
    b'\x85': lambda m: m._short_tuple(1),
    b'\x86': lambda m: m._short_tuple(2),
    b'\x87': lambda m: m._short_tuple(3),
    b']': lambda m: m._push([]),
    b'}': lambda m: m._push({}),
    b'\x8f': lambda m: m._push(set()),
    b'a': _Machine._append,
    b'e': _Machine._appends,
    b's': _Machine._set_item,
    b'u': _Machine._set_items,
    b'\x90': _Machine._add_items,
    b'\x91': _Machine._frozenset,
    b'c': _Machine._global,
    b'\x93': _Machine._stack_global,
    b'R': _Machine._reduce,
    b'\x81': _Machine._new_object,
    b'b': _Machine._build,
    b'Q': _Machine._persistent_id,
    b'q': lambda m: m._put('<B', 1),
    b'r': lambda m: m._put('<I', 4),
    b'\x94': _Machine._memoize,
    b'h': lambda m: m._get('<B', 1),
    b'j': lambda m: m._get('<I', 4),
    b'\x80': _Machine._protocol,
    # The length of a frame: nothing is read ahead here.
    b'\x95': lambda m: m._number('<Q', 8),
}
