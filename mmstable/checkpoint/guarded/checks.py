"""Is an argument of the exact type that genuine files have there?"""

from __future__ import annotations

from typing import Any, TypeVar

from mmstable.checkpoint.guarded.errors import Refused

_Kind = TypeVar('_Kind')
_LARGEST = 2**62
_MOST_DIMENSIONS = 64


def exact(value: Any, kind: type[_Kind], what: str) -> _Kind:
    """``value``, if it is exactly of a type."""
    if type(value) is not kind:
        raise Refused(f'{what} that is a {type(value).__name__}')
    return value


def size(value: Any, what: str) -> int:
    """``value``, if it is an integer that can be a size or an index."""
    number = exact(value, int, what)
    if not 0 <= number < _LARGEST:
        raise Refused(f'{what} out of range')
    return number


def sizes(value: Any, what: str) -> tuple[int, ...]:
    """``value``, if it is a tuple of sizes."""
    # Also a torch.Size, which is one.
    if not isinstance(value, tuple) or len(value) > _MOST_DIMENSIONS:
        raise Refused(f'{what} that is a {type(value).__name__}')
    return tuple(size(number, what) for number in value)
