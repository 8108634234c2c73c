"""Execute a pickle that may be hostile, and build plain data only.

The standard library executes the opcodes that torch and mmengine write in
protocols 2 to 5; all others are unknown here. Whatever creates, calls or
fills an object is done by this file, with :mod:`rebuild` for what the file
may name, and within a :class:`Budget` that follows the size of the file.
"""

from __future__ import annotations

import pickle
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import IO, Any, Callable, ClassVar

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer

from mmstable.checkpoint.reader import rebuild
from mmstable.checkpoint.reader.rebuild import Name, Refused, Unknown, exact
from mmstable.io.files import Malformed

# A few seconds of work; the largest genuine checkpoints have two million.
_MOST_OPERATIONS = 5_000_000
_DEEPEST = 100
_MOST_MARKS = 1000
_LONGEST_NAME, _LONGEST_LINE = 512, 1024
# Elements of all containers, counted wherever they are referred to.
_ELEMENTS_PER_OPERATION = 8
# Bytes of all objects, which may share storages.
_BYTES_PER_BYTE, _MOST_BYTES = 4, 64 << 20
_MOST_COPIES = 1 << 20
_SIZED = (str, bytes, bytearray, tuple, list, dict, set, frozenset)
# Numbers and tuples can be chosen so that each new key is compared with all
# others. Integers that count up, as the indices of an optimizer do, cannot.
_MOST_CHOSEN_KEYS, _COST_OF_TUPLE = 10_000, 10
_LONGEST_TUPLE, _LARGEST_KEY = 16, 2**60
_FAR_AHEAD = 4
_SCALARS = (str, bytes, bool, type(None))
_NUMBERS = (int, float, np.integer, np.floating, np.bool_)
_KNOWN = {*rebuild.CALLED, *rebuild.CONTAINERS, *rebuild.MENTIONED}
# By the bytes that each takes beside the values. Tuples count, too: without
# a bound, collecting garbage would take longer than making them.
_OPCODES = {
    0: """PROTO FRAME STOP POP POP_MARK MARK NONE NEWTRUE NEWFALSE BININT
    BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8
    BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8
    EMPTY_TUPLE APPEND APPENDS SETITEM SETITEMS ADDITEMS BINPUT LONG_BINPUT
    MEMOIZE BINGET LONG_BINGET GLOBAL STACK_GLOBAL BUILD BINPERSID""",
    64: 'TUPLE TUPLE1 TUPLE2 TUPLE3',
    256: 'EMPTY_LIST EMPTY_DICT EMPTY_SET FROZENSET REDUCE NEWOBJ',
}
# What APPENDS, SETITEMS and ADDITEMS fill.
_LISTS, _DICTS, _SETS = (list,), (dict, OrderedDict, ConfigDict), (set,)


class CutOff(Malformed):
    """The end of a pickle is missing."""


class _Memo(dict):
    """Objects by their number: numbers that count up, as a pickler's do."""

    def __setitem__(self, index: int, made: Any) -> None:
        if index > len(self) + _FAR_AHEAD:
            raise Malformed(f'object {index} before its turn')
        super().__setitem__(index, made)


# The standard library's machine in Python, whose dispatch can be replaced.
_Machine: Any = pickle._Unpickler


class Unpickler(_Machine):
    """Reads pickles that follow each other.

    Args:
        source (IO): Their bytes.
        file_size (int): Bytes of the file, which limit what all of them may
            take.
        find_storage (Callable): Gives the storage for a persistent id.
    """

    def __init__(
        self,
        source: IO[bytes],
        file_size: int,
        find_storage: Callable[[Any], Any],
    ) -> None:
        super().__init__(source)
        self._source = source
        self._file_size = file_size
        self.persistent_load = find_storage
        self._operations = 0
        self._bytes = _MOST_BYTES + _BYTES_PER_BYTE * file_size
        self._copies = _MOST_COPIES + file_size
        self._chosen_keys = _MOST_CHOSEN_KEYS

    def load(self) -> Any:
        """The object that the next pickle holds.

        Raises:
            Malformed: If the bytes are not a pickle, or too much of one.
            Refused: If it is more than data.
        """
        self.memo = _Memo()
        self.stack: list[Any] = []
        self.append = self.stack.append
        self.metastack: list[list[Any]] = []
        self._unfinished: dict[int, Any] = {}
        read, dispatch = self._source.read, self.dispatch
        try:
            while code := read(1):
                self._operations += 1
                if self._operations > _MOST_OPERATIONS:
                    raise Malformed(f'more than {_MOST_OPERATIONS} operations')
                if code not in dispatch:
                    raise Malformed(f'unknown operation {code!r}')
                handle, overhead = dispatch[code]
                if overhead:
                    self._claim(overhead)
                handle(self)
            raise CutOff('the pickle is cut off')
        except pickle._Stop as stop:  # type: ignore[attr-defined]
            value = stop.value
        except (Malformed, Refused):
            raise
        except Exception as error:
            # Whatever the standard library, numpy or torch has against it.
            text = f'{type(error).__name__}: {error}'
            raise Malformed(f'no valid pickle ({text})') from error
        if self._unfinished:
            raise Refused('an array or a history without content')
        _check_tree(value, 1000 + _ELEMENTS_PER_OPERATION * self._operations)
        return value

    def _claim(self, size: int) -> None:
        """Account for the bytes of an object."""
        self._bytes -= size
        if self._bytes < 0:
            raise Malformed('objects far larger than the file')

    def _claim_copies(self, args: Iterable[Any]) -> None:
        """Account for what a call may copy, again and again."""
        self._copies -= sum(len(a) for a in args if isinstance(a, _SIZED))
        if self._copies < 0:
            raise Malformed('more content than the file can hold')

    def _check_key(self, key: Any, count: int) -> Any:
        """Return a key of a dict or a member of a set if it is allowed.

        Args:
            key (Any): A scalar, or a short tuple of scalars.
            count (int): Keys that are there already.
        """
        if type(key) in _SCALARS:
            return key
        if type(key) is int and 0 <= key <= count + _FAR_AHEAD:
            return key
        is_tuple = type(key) is tuple and len(key) <= _LONGEST_TUPLE
        for part in key if is_tuple else (key,):
            if (type(part) is int and abs(part) >= _LARGEST_KEY) or not (
                type(part) in _SCALARS or isinstance(part, _NUMBERS)
            ):
                raise Refused(f'a {type(key).__name__} as a key')
        self._chosen_keys -= _COST_OF_TUPLE if is_tuple else 1
        if self._chosen_keys < 0:
            raise Refused('too many numbers as keys')
        return key

    def _put(self, items: Iterable[Any], target: Any) -> Any:
        """Add members, or keys and values in turn, to a container."""
        if type(target) is list:
            target.extend(items)
        elif type(target) is set:
            for member in items:
                target.add(self._check_key(member, len(target)))
        else:
            # addict's own method would convert values, and copy them.
            kind = dict if type(target) is ConfigDict else type(target)
            entries = iter(items)
            for key, value in zip(entries, entries):
                self._check_key(key, len(target))
                kind.__setitem__(target, key, value)
        return target

    def _fill(self, kinds: tuple[type, ...], items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) not in kinds or (kinds is _DICTS and len(items) % 2):
            raise Malformed(f'an item for a {type(target).__name__}')
        self._put(items, target)

    # The methods below replace the standard library's of the same name.

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a name; nothing is imported."""
        # Python 2 had another name for it.
        module = 'builtins' if module == '__builtin__' else module
        text = f'{module}.{name}'[:_LONGEST_NAME]
        if text in rebuild.CONSTANTS:
            return rebuild.CONSTANTS[text]
        return Name(text) if text in _KNOWN else Unknown(text)

    def read(self, count: int) -> bytes:
        """Exactly so many bytes: no memory is taken for others."""
        is_possible = 0 <= count <= self._file_size
        data = self._source.read(count) if is_possible else b''
        if len(data) != count:
            raise CutOff('the pickle is cut off')
        return data

    def readline(self) -> bytes:
        """The rest of a line: names are short."""
        return self._source.readline(_LONGEST_LINE)

    def load_reduce(self) -> None:
        """Answer a call by a function of ours."""
        args = exact(self.stack.pop(), tuple, 'arguments')
        callee = self.stack.pop()
        if type(callee) is Unknown:
            raise Refused(callee)
        if type(callee) is not Name:
            raise Refused(f'a call of a {type(callee).__name__}')
        self._claim_copies(args)
        try:
            made = self._make(callee, args)
        except TypeError:
            # The number of arguments: their types are checked inside.
            raise Refused(f'{callee} with other arguments') from None
        if type(made) is torch.Tensor and made.layout is torch.strided:
            self._claim(made.numel() * made.element_size())
        self.append(made)

    load_newobj = load_reduce

    def _make(self, name: Name, args: tuple[Any, ...]) -> Any:
        if name in rebuild.CONTAINERS:
            kind, convert = rebuild.CONTAINERS[name]
            target = set() if kind is frozenset else kind()
            for argument in args:
                self._put(convert(argument), target)
            return frozenset(target) if kind is frozenset else target
        if name not in rebuild.CALLED:
            raise Refused(f'a call of {name}')
        made = rebuild.CALLED[name](*args)
        if rebuild.CALLED[name] in rebuild.UNFINISHED:
            self._unfinished[id(made)] = made
        return made

    def load_build(self) -> None:
        """Complete an object by its state, in place."""
        state, target = self.stack.pop(), self.stack[-1]
        self._claim_copies((state,))
        if type(target) is ConfigDict:
            if state is not target:
                self._put(rebuild.flatten(state), target)
        elif type(target) in rebuild.FILLED:
            needed = type(target) in (np.ndarray, HistoryBuffer)
            if needed and self._unfinished.pop(id(target), None) is None:
                raise Refused('a second state of an array or a history')
            rebuild.FILLED[type(target)](target, state)
            is_history = type(target) is HistoryBuffer
            for part in target.data if is_history else (target,):
                self._claim(getattr(part, 'nbytes', 0))
        else:
            raise Refused(f'a state for a {type(target).__name__}')

    def load_mark(self) -> None:
        """Begin the items of a container."""
        if len(self.metastack) >= _MOST_MARKS:
            raise Malformed(f'more than {_MOST_MARKS} marks')
        super().load_mark()

    def _decode_string(self, value: bytes) -> str | bytes:
        """Text and bytes are the same for Python 2."""
        try:
            return value.decode('utf-8')
        except UnicodeDecodeError:
            return value

    def load_bytearray8(self) -> None:
        """Push bytes. The standard library would allocate before it reads."""
        size = int.from_bytes(self.read(8), 'little')
        self.append(bytearray(self.read(size)))

    def load_frozenset(self) -> None:
        """Push a set of checked members."""
        self.append(frozenset(self._put(self.pop_mark(), set())))

    _own: ClassVar[dict[str, Any]] = {
        # The length of a frame: nothing is read ahead here.
        'FRAME': lambda self: self.read(8),
        'APPEND': lambda self: self._fill(_LISTS, [self.stack.pop()]),
        'APPENDS': lambda self: self._fill(_LISTS, self.pop_mark()),
        'SETITEM': lambda self: self._fill(
            _DICTS, [self.stack.pop(-2), self.stack.pop()]
        ),
        'SETITEMS': lambda self: self._fill(_DICTS, self.pop_mark()),
        'ADDITEMS': lambda self: self._fill(_SETS, self.pop_mark()),
    }
    # How each is executed, and the bytes that it takes.
    dispatch: ClassVar[dict[bytes, tuple[Any, int]]] = {}
    for _overhead, _opcodes in _OPCODES.items():
        for _opcode in _opcodes.split():
            _code = getattr(pickle, _opcode)
            _standard = _Machine.dispatch[_code[0]]
            _named = vars().get(_standard.__name__, _standard)
            dispatch[_code] = _own.get(_opcode, _named), _overhead


# What a container holds.
_PARTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    **dict.fromkeys((list, tuple, set, frozenset), iter),
    **dict.fromkeys((dict, ConfigDict, Counter), dict.values),
    OrderedDict: lambda one: [*one.values(), *vars(one).values()],
}


def _check_tree(value: Any, most: int) -> None:
    """Refuse cycles, depth, and content that shared parts make huge.

    Code that walks the result, as an audit does, must come to an end.
    """
    # Elements by the id of a container; None while it is being counted.
    counted: dict[int, int | None] = {}

    def count(part: Any, depth: int) -> int:
        if type(part) in rebuild.LEAVES or isinstance(part, np.generic):
            return 1
        if type(part) is Unknown:
            raise Refused(part)
        if type(part) not in _PARTS:
            raise Refused(f'a {type(part).__name__} as a value')
        known = counted.get(id(part), 0)
        if known is None:
            raise Malformed('an object that contains itself')
        if known:
            return known
        if depth >= _DEEPEST:
            raise Malformed(f'more than {_DEEPEST} levels')
        counted[id(part)] = None
        total = 1
        for one in _PARTS[type(part)](part):
            total += count(one, depth + 1)
            if total > most:
                raise Malformed('more content than the file can hold')
        counted[id(part)] = total
        return total

    count(value, 0)
