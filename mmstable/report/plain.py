"""Values out of records that nobody has checked."""

from __future__ import annotations

import math
from typing import Any

_NONFINITE = {'NaN': math.nan, 'Infinity': math.inf, '-Infinity': -math.inf}
_LARGEST = 2**64
_LONGEST, _MOST, _DEEPEST = 600, 24, 5
# The most keys of an object; no record has as many fields.
_MOST_KEYS = 64
# The most characters of a whole record.
_MOST_TEXT = 6000


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


def shorten(value: Any, most: int = _MOST_TEXT) -> Any:
    """The same value, cut to a readable length.

    Args:
        value (Any): Plain types.
        most (int): Characters of all its texts. Defaults to 6000.
    """
    return _shorten(value, _DEEPEST, [most])


def _shorten(value: Any, deepest: int, room: list[int]) -> Any:
    """What fits in; ``room`` has the number of characters that are left."""
    if isinstance(value, str):
        longest = min(_LONGEST, room[0])
        room[0] -= min(len(value), longest)
        more = len(value) - longest
        return value if more <= 0 else f'{value[:longest]}… (+{more})'
    if not isinstance(value, (list, dict)):
        return value
    if deepest == 0 or room[0] <= 0:
        return '…'
    if isinstance(value, list):
        return [_shorten(one, deepest - 1, room) for one in value[:_MOST]]
    return {
        _shorten(key, 0, room): _shorten(one, deepest - 1, room)
        for key, one in list(value.items())[:_MOST_KEYS]
        if room[0] > 0
    }
