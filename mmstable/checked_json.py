"""Data from outside: JSON parsed in bounds, and values of any file checked.

A check takes a value and returns it. It raises ValueError for anything but
what it stands for, with a reason that is short and printable.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Callable

from mmstable.messages.printable import printable, short_repr

Check = Callable[[Any], Any]

# What 64 bits hold, with or without sign.
_LEAST, _MOST = -(2**63), 2**64 - 1


def parse_json(content: bytes, longest: int, digits: int = 20) -> Any:
    """Parse a JSON text.

    Args:
        content (bytes): The text.
        longest (int): The most bytes that it may have.
        digits (int): The most that an integer may have. Defaults to 20.

    Raises:
        ValueError: If it is too long, too deep or no JSON.
    """
    if len(content) > longest:
        raise ValueError(f'has more than {longest} bytes')

    def parse_int(number: str) -> int:
        # Python needs time and memory for very long ones, or refuses them.
        if len(number) > digits:
            raise ValueError(f'has a number of {len(number)} digits')
        return int(number)

    try:
        return json.loads(str(content, 'utf-8'), parse_int=parse_int)
    except RecursionError:
        raise ValueError('is nested too deeply') from None


def integer(least: int = _LEAST, most: int = _MOST) -> Check:
    """A whole number in a range, both ends included."""

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f'must be an integer, got {short_repr(value)}')
        if not least <= value <= most:
            raise ValueError(f'must be {least} to {most}, got {value}')
        return value

    return check


# A number of iterations, steps or bytes; JSON of others has no larger ones.
count = integer(0, 2**53)


def number(value: Any) -> float:
    """A finite number."""
    known = _as_float(value)
    if not math.isfinite(known):
        raise ValueError(f'must be finite, got {known}')
    return known


def number_or_inf(value: Any) -> float:
    """A number or an infinity, but not NaN."""
    known = _as_float(value)
    if math.isnan(known):
        raise ValueError('must not be nan')
    return known


def _as_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f'must be a number, got {short_repr(value)}')
    try:
        return float(value)
    except OverflowError:
        raise ValueError('must be a number of 64 bits') from None


def within(least: float, most: float = math.inf) -> Check:
    """A finite number in a range, both ends included."""

    def check(value: Any) -> float:
        known = number(value)
        if not least <= known <= most:
            raise ValueError(f'must be {least:g} to {most:g}, got {known:g}')
        return known

    return check


def anything(value: Any) -> Any:
    """Any value at all."""
    return value


def number_in(least: float, most: float) -> Check:
    """A finite number in a range, both ends included."""

    def check(value: Any) -> float:
        if not least <= number(value) <= most:
            raise ValueError(f'must be {least:g} to {most:g}, got {value:g}')
        return float(value)

    return check


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


def list_of(check: Check, most: int = 1 << 20) -> Check:
    """An array of at most so many values of one kind."""

    def check_list(value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)):
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
        if not isinstance(value, (list, tuple)) or len(value) != len(checks):
            raise ValueError(
                f'must be an array of {len(checks)}, got {short_repr(value)}'
            )
        return tuple(check(item) for check, item in zip(checks, value))

    return check_tuple


def mapping_of(check_key: Check, check: Check, most: int = 1 << 20) -> Check:
    """An object with any keys of one kind, to values of one kind."""

    def check_mapping(value: Any) -> dict[Any, Any]:
        if len(_as_dict(value)) > most:
            raise ValueError(
                f'must have at most {most} entries, has {len(value)}'
            )
        return {
            check_key(key): _check_key(key, check, one)
            for key, one in value.items()
        }

    return check_mapping


def record(**checks: Check) -> Check:
    """An object with exactly these keys."""

    def check_record(value: Any) -> dict[str, Any]:
        if _as_dict(value).keys() != checks.keys():
            raise ValueError(
                f'must have the keys {", ".join(checks)}, got '
                f'{short_repr(list(value))}'
            )
        return {
            key: _check_key(key, checks[key], value[key]) for key in checks
        }

    return check_record


def fields(checks: Mapping[str, Check]) -> Check:
    """An object in which these keys are checked where they are present.

    All others are left alone.
    """

    def check_fields(value: Any) -> dict[Any, Any]:
        return {
            key: _check_key(key, checks[key], one) if key in checks else one
            for key, one in _as_dict(value).items()
        }

    return check_fields


def _as_dict(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise ValueError(f'must be an object, got {short_repr(value)}')
    return value


def _check_key(key: Any, check: Check, value: Any) -> Any:
    try:
        return check(value)
    except ValueError as error:
        raise ValueError(f'`{printable(key, 200)}`: {error}') from None
