"""Built-in containers and numbers, as pickles of protocol 2 write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mmstable.checkpoint.guarded.checks import exact
from mmstable.checkpoint.guarded.errors import Refused
from mmstable.checkpoint.guarded.nodes import CounterNode, Name, OrderedNode

_SCALARS = (str, int, bool, float, type(None), bytes)
_FACTORIES = ('list', 'dict', 'int', 'float', 'set')


def _ordered_dict(pairs: Any = ()) -> OrderedNode:
    node = OrderedNode()
    for pair in pairs if type(pairs) is list else exact(pairs, tuple, 'items'):
        if type(pair) not in (list, tuple) or len(pair) != 2:
            raise Refused('an OrderedDict of other than pairs')
        node[_member(pair[0])] = pair[1]
    return node


def _fill_ordered_dict(node: OrderedNode, state: Any) -> None:
    # What `state_dict()` of a module says of versions; anything else that a
    # file would attach to a dict is not needed, and not done.
    for key, value in exact(state, dict, 'attributes').items():
        if key == '_metadata':
            node.metadata = value


def _counter(counts: Any = None) -> CounterNode:
    node = CounterNode()
    if counts is not None:
        for key, count in exact(counts, dict, 'counts').items():
            node[key] = exact(count, int, 'a count')
    return node


def _default_dict(factory: Any = None) -> dict[Any, Any]:
    exact(factory, Name, 'a default') if factory is not None else None
    return {}


def _set(members: Any = ()) -> set[Any]:
    return {_member(one) for one in _sequence(members)}


def _frozenset(members: Any = ()) -> frozenset[Any]:
    return frozenset(_set(members))


def _sequence(members: Any) -> list[Any] | tuple[Any, ...]:
    return members if type(members) is list else exact(members, tuple, 'a set')


def _member(value: Any) -> Any:
    if type(value) is tuple and all(type(one) in _SCALARS for one in value):
        return value
    if type(value) not in _SCALARS:
        raise Refused(f'a {type(value).__name__} as a key')
    return value


def _bytes(*args: Any) -> bytes:
    if args:
        raise Refused('builtins.bytes of other than nothing')
    return b''


def _bytearray(data: Any = b'', encoding: Any = 'latin-1') -> bytearray:
    if type(data) is str:
        data = _encode(data, encoding)
    return bytearray(exact(data, bytes, 'a bytearray'))


def _encode(text: Any, encoding: Any = 'latin1') -> bytes:
    if encoding not in ('latin1', 'latin-1'):
        raise Refused('_codecs.encode of another encoding')
    try:
        return exact(text, str, 'a text').encode('latin1')
    except UnicodeEncodeError:
        raise Refused('_codecs.encode of other than bytes') from None


def _complex(real: Any, imaginary: Any) -> complex:
    return complex(
        exact(real, float, 'a part'), exact(imaginary, float, 'a part')
    )


CALLED: dict[str, Callable[..., Any]] = {
    'collections.OrderedDict': _ordered_dict,
    'collections.Counter': _counter,
    'collections.defaultdict': _default_dict,
    'builtins.set': _set,
    'builtins.frozenset': _frozenset,
    'builtins.bytes': _bytes,
    'builtins.bytearray': _bytearray,
    'builtins.complex': _complex,
    '_codecs.encode': _encode,
}
NEW: dict[str, Callable[..., Any]] = {}
MENTIONED = tuple(f'builtins.{name}' for name in _FACTORIES)
FILLED: dict[type, Callable[[Any, Any], None]] = {
    OrderedNode: _fill_ordered_dict
}
