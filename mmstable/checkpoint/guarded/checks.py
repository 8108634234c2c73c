"""Is an argument of the exact type that genuine files have there?"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, TypeVar

import numpy as np

from mmstable.checkpoint.guarded.errors import Refused

_Kind = TypeVar('_Kind')
_LARGEST = 2**62
_MOST_DIMENSIONS = 64
_SCALARS = (str, int, bool, float, type(None), bytes)
_NUMBERS = (np.integer, np.floating, np.bool_)
# Larger integers, and tuples of any, can be made to have equal hashes: each
# new key would be compared with all others.
_LARGEST_KEY = 2**60
_LONGEST_TUPLE, _MOST_TUPLES = 16, 1000


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


def key(value: Any, container: Sized) -> Any:
    """``value``, if it can be a key: a scalar, or a tuple of a few.

    Args:
        value (Any): The key.
        container (Sized): The dict or set that it is for.
    """
    if type(value) is tuple:
        few = len(value) <= _LONGEST_TUPLE and len(container) < _MOST_TUPLES
        if few and all(map(_is_scalar, value)):
            return value
    elif _is_scalar(value):
        return value
    raise Refused(f'a {type(value).__name__} as a key')


def _is_scalar(value: Any) -> bool:
    if type(value) is int:
        return -_LARGEST_KEY < value < _LARGEST_KEY
    return type(value) in _SCALARS or isinstance(value, _NUMBERS)
