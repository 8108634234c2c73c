"""What a checkpoint may name, and what it gets for it.

Each name stands for a function of ours that checks its arguments and gives
plain data or a node. Nothing else can be named, called or filled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mmstable.checkpoint.guarded import (
    mmengine_names,
    numpy_names,
    plain_names,
    torch_names,
)
from mmstable.checkpoint.guarded.errors import Refused
from mmstable.checkpoint.guarded.nodes import Name

_Build = Callable[..., Any]
_PARTS = (plain_names, torch_names, numpy_names, mmengine_names)
# Values that are a name and nothing else.
_CONSTANTS: dict[str, Any] = torch_names.CONSTANTS
# Called by REDUCE, by NEWOBJ, or by name only as an argument of these.
_CALLED: dict[str, _Build] = {
    k: v for p in _PARTS for k, v in p.CALLED.items()
}
_NEW: dict[str, _Build] = {k: v for p in _PARTS for k, v in p.NEW.items()}
_MENTIONED: frozenset[str] = frozenset(n for p in _PARTS for n in p.MENTIONED)
# Nodes that BUILD completes.
_FILLED: dict[type, Callable[[Any, Any], None]] = {
    k: v for p in _PARTS for k, v in p.FILLED.items()
}
_MODULES_OF_PYTHON2 = {'__builtin__': 'builtins'}


def find(module: str, name: str) -> Any:
    """What stands for a name.

    Raises:
        Refused: If it is not known.
    """
    text = f'{_MODULES_OF_PYTHON2.get(module, module)}.{name}'
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    function = mmengine_names.find_function(text)
    if function is not None:
        return function
    if text in _CALLED or text in _NEW or text in _MENTIONED:
        return Name(text)
    raise Refused(text)


def call(name: Name, args: tuple[Any, ...]) -> Any:
    """The result of a call."""
    build = _CALLED.get(name.text)
    if build is None:
        raise Refused(f'a call of {name.text}')
    return _build(build, name, args)


def new(name: Name, args: tuple[Any, ...]) -> Any:
    """A new object of a class."""
    build = _NEW.get(name.text)
    if build is None:
        raise Refused(f'an object of {name.text}')
    return _build(build, name, args)


def fill(target: Any, state: Any) -> None:
    """Complete an object by its saved state."""
    complete = _FILLED.get(type(target))
    if complete is None:
        raise Refused(f'a state for a {type(target).__name__}')
    complete(target, state)


def _build(build: _Build, name: Name, args: tuple[Any, ...]) -> Any:
    try:
        return build(*args)
    except TypeError:
        # The number of arguments: their types are checked inside.
        raise Refused(f'{name.text} with other arguments') from None
