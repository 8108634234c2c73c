"""Values out of records that nobody has checked."""

from __future__ import annotations

import math
from typing import Any

_NONFINITE = {'NaN': math.nan, 'Infinity': math.inf, '-Infinity': -math.inf}
_LARGEST = 2**64
_LONGEST, _MOST, _DEEPEST = 600, 24, 5
# Of an object; no record has as many fields.
_MOST_KEYS = 64


def number(value: Any) -> float | None:
    """A number, also one that is not finite; None for anything else."""
    if type(value) is float:
        return value
    if isinstance(value, str):
        return _NONFINITE.get(value)
    if type(value) is not int or abs(value) > _LARGEST:
        return None
    return float(value)


def finite(value: Any) -> float | None:
    """A finite number, or None."""
    found = number(value)
    return found if found is not None and math.isfinite(found) else None


def whole(value: Any) -> int:
    """A count; 0 for anything that is none."""
    found = finite(value)
    return 0 if found is None else int(found)


def text(value: Any) -> str:
    """A text that is not too long; '' for anything else."""
    return shorten(value) if isinstance(value, str) else ''


def texts(value: Any) -> list[str]:
    """The texts of a list."""
    items = value if isinstance(value, list) else []
    return [shorten(one) for one in items[:_MOST] if isinstance(one, str)]


def mapping(value: Any) -> dict[str, Any]:
    """An object, or an empty one."""
    return value if isinstance(value, dict) else {}


def shorten(value: Any, deepest: int = _DEEPEST) -> Any:
    """The same value, as far as anybody would read it."""
    if isinstance(value, str):
        more = len(value) - _LONGEST
        return value if more <= 0 else f'{value[:_LONGEST]}… (+{more})'
    if isinstance(value, (list, dict)) and deepest == 0:
        return '…'
    if isinstance(value, list):
        return [shorten(one, deepest - 1) for one in value[:_MOST]]
    if isinstance(value, dict):
        return {
            shorten(key): shorten(one, deepest - 1)
            for key, one in list(value.items())[:_MOST_KEYS]
        }
    return value
