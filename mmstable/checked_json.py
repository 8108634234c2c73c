"""JSON that somebody else may have written: parsed in bounds, and checked.

A check takes a value and returns it. It raises ValueError for anything but
what it stands for, with a reason that is short and printable.
"""

from __future__ import annotations

import json
import math
from typing import Any, Callable

from mmstable.messages.printable import short_repr

Check = Callable[[Any], Any]

# What 64 bits hold, with or without sign.
_LEAST, _MOST = -(2**63), 2**64 - 1


def parse_json(content: bytes, longest: int) -> Any:
    """Parse a JSON text.

    Args:
        content (bytes): The text.
        longest (int): The most bytes that it may have.

    Raises:
        ValueError: If it is too long, too deep or no JSON.
    """
    if len(content) > longest:
        raise ValueError(f'has more than {longest} bytes')
    try:
        return json.loads(str(content, 'utf-8'), parse_int=_parse_int)
    except RecursionError:
        raise ValueError('is nested too deeply') from None


def _parse_int(digits: str) -> int:
    # Python needs time and memory for very long ones, or refuses them.
    if len(digits) > 20:
        raise ValueError(f'has a number of {len(digits)} digits')
    return int(digits)


def integer(least: int = _LEAST, most: int = _MOST) -> Check:
    """A whole number in a range, both ends included."""

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f'must be an integer, got {short_repr(value)}')
        if not least <= value <= most:
            raise ValueError(f'must be {least} to {most}, got {value}')
        return value

    return check


def number(value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f'must be a number, got {short_repr(value)}')
    if not math.isfinite(value):
        raise ValueError(f'must be finite, got {value}')
    return float(value)


def boolean(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError(f'must be true or false, got {short_repr(value)}')
    return value


def text(longest: int | None = None) -> Check:
    """A string of at most so many characters."""

    def check(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(f'must be a string, got {short_repr(value)}')
        if longest is not None and len(value) > longest:
            raise ValueError(
                f'must have at most {longest} characters, has {len(value)}'
            )
        return value

    return check


def one_of(*values: str) -> Check:
    """One of a few strings."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in values:
            raise ValueError(
                f'must be one of {", ".join(map(repr, values))}, got '
                f'{short_repr(value)}'
            )
        return value

    return check


def optional(check: Check) -> Check:
    """The same, or null."""
    return lambda value: None if value is None else check(value)


def list_of(check: Check, most: int) -> Check:
    """An array of at most so many values of one kind."""

    def check_list(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValueError(f'must be an array, got {short_repr(value)}')
        if len(value) > most:
            raise ValueError(
                f'must have at most {most} entries, has {len(value)}'
            )
        return [check(item) for item in value]

    return check_list


def tuple_of(*checks: Check) -> Check:
    """An array with one value for each check."""

    def check_tuple(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(checks):
            raise ValueError(
                f'must be an array of {len(checks)}, got {short_repr(value)}'
            )
        return tuple(check(item) for check, item in zip(checks, value))

    return check_tuple


def record(**checks: Check) -> Check:
    """An object with exactly these keys."""

    def check_record(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError(f'must be an object, got {short_repr(value)}')
        if value.keys() != checks.keys():
            raise ValueError(
                f'must have the keys {", ".join(checks)}, got '
                f'{short_repr(list(value))}'
            )
        return {
            key: _check_key(key, checks[key], value[key]) for key in checks
        }

    return check_record


def _check_key(key: str, check: Check, value: Any) -> Any:
    try:
        return check(value)
    except ValueError as error:
        raise ValueError(f'`{key}`: {error}') from None
