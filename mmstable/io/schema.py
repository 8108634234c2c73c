"""Check data from outside: JSON parsed in bounds, and values of files.

A check takes a value and returns it, or raises a ValueError with a reason
that is short and printable. :func:`or_default` makes a check lenient.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from typing import Any, Callable

from mmstable.messages import printable, short_repr
from mmstable.settings import is_numeric

Check = Callable[[Any], Any]

# The range of 64-bit integers, signed and unsigned.
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1
_MAX_ENTRIES = 1 << 20
# JSON has no such numbers, so event files write their names.
NONFINITE = {'NaN': math.nan, 'Infinity': math.inf, '-Infinity': -math.inf}


def parse_json(content: bytes, longest: int, digits: int | None = 20) -> Any:
    """Parse a JSON text.

    Args:
        content (bytes): The text.
        longest (int): The most bytes that it may have.
        digits (int, optional): The most that an integer may have; None does
            not ask, which is for short texts with many integers. Defaults to
            20.

    Raises:
        ValueError: If it is too long, too deep or no JSON.
    """
    if len(content) > longest:
        raise ValueError(f'has more than {longest} bytes')

    def parse_int(number: str) -> int:
        # Parsing takes quadratic time; newer Pythons refuse long ones.
        if digits is not None and len(number) > digits:
            raise ValueError(f'has a number of {len(number)} digits')
        return int(number)

    try:
        return json.loads(
            str(content, 'utf-8'),
            parse_int=None if digits is None else parse_int,
        )
    except RecursionError:
        raise ValueError('is nested too deeply') from None


def _must_be(rule: str, is_valid: Callable[[Any], Any]) -> Check:
    def check(value: Any) -> Any:
        if not is_valid(value):
            raise ValueError(f'must be {rule}, got {short_repr(value)}')
        return value

    return check


def _at_most(most: int | None, unit: str, value: Any) -> Any:
    if most is not None and len(value) > most:
        raise ValueError(f'must have at most {most} {unit}, has {len(value)}')
    return value


def anything(value: Any) -> Any:
    """Any value at all."""
    return value


# True or false; an object with any keys and values.
boolean = _must_be('true or false', lambda value: isinstance(value, bool))
an_object = _must_be('an object', lambda value: isinstance(value, dict))
_string = _must_be('a string', lambda value: isinstance(value, str))
_array = _must_be('an array', lambda value: isinstance(value, (list, tuple)))
_numeric = _must_be('a number', is_numeric)
_finite = _must_be('finite', math.isfinite)
_above_zero = _must_be('above 0', lambda value: value > 0)
_integer = _must_be(
    'an integer',
    lambda value: is_numeric(value) and not isinstance(value, float),
)


@cache
def integer(least: int = _INT_MIN, most: int = _INT_MAX) -> Check:
    """A whole number in a range, both ends included."""
    rule = f'{least} to {most}'
    in_range = _must_be(rule, lambda value: least <= value <= most)
    return lambda value: in_range(_integer(value))


# A number of iterations, steps or bytes, exact as a float of JSON.
count = integer(0, 2**53)


def any_number(value: Any) -> float:
    """A number, also NaN or an infinity."""
    try:
        return float(_numeric(value))
    except OverflowError:
        raise ValueError('must be a number of 64 bits') from None


def number(value: Any) -> float:
    """A finite number."""
    return _finite(any_number(value))


def number_or_inf(value: Any) -> float:
    """A number or an infinity, but not NaN."""
    known = any_number(value)
    if math.isnan(known):
        raise ValueError('must not be nan')
    return known


def json_number(value: Any) -> float:
    """A number as event files have it: NaN and infinities by their names."""
    if isinstance(value, str) and value in NONFINITE:
        return NONFINITE[value]
    return any_number(value)


def within(least: float, most: float = math.inf) -> Check:
    """A finite number in a range, both ends included."""
    rule = f'{least:g} to {most:g}'
    in_range = _must_be(rule, lambda value: least <= value <= most)
    return lambda value: in_range(number(value))


def positive(value: Any) -> float:
    """A finite number above 0."""
    return _above_zero(number(value))


@cache
def text(longest: int | None = None) -> Check:
    """A string of at most so many characters."""
    return lambda value: _at_most(longest, 'characters', _string(value))


def one_of(*values: str) -> Check:
    """One of a few strings."""
    rule = f'one of {", ".join(map(repr, values))}'
    return _must_be(rule, lambda one: isinstance(one, str) and one in values)


def optional(check: Check) -> Check:
    """Allow null besides."""
    return lambda value: None if value is None else check(value)


def or_default(check: Check, default: Any = None) -> Check:
    """Return a default in place of a value that the check refuses."""

    def check_or_default(value: Any) -> Any:
        try:
            return check(value)
        except ValueError:
            return default

    return check_or_default


def list_of(check: Check, most: int = _MAX_ENTRIES) -> Check:
    """An array of at most so many values of one kind."""
    return lambda value: [
        check(item) for item in _at_most(most, 'entries', _array(value))
    ]


def tuple_of(*checks: Check) -> Check:
    """An array with one value for each check."""
    is_array = _must_be(
        f'an array of {len(checks)}',
        lambda value: (
            isinstance(value, (list, tuple)) and len(value) == len(checks)
        ),
    )
    return lambda value: tuple(
        check(item) for check, item in zip(checks, is_array(value))
    )


def mapping_of(
    check_key: Check, check: Check, most: int = _MAX_ENTRIES
) -> Check:
    """An object with any keys of one kind, to values of one kind."""
    return lambda value: {
        check_key(key): check_field(key, check, one)
        for key, one in _at_most(most, 'entries', an_object(value)).items()
    }


def record(**checks: Check) -> Check:
    """An object with exactly these keys."""

    def check_record(value: Any) -> dict[str, Any]:
        if an_object(value).keys() != checks.keys():
            raise ValueError(
                f'must have the keys {", ".join(checks)}, got '
                f'{short_repr(list(value))}'
            )
        return {
            key: check_field(key, checks[key], value[key]) for key in checks
        }

    return check_record


def fields(checks: Mapping[str, Check]) -> Check:
    """An object in which these keys are checked where they are present.

    Other keys are not checked.
    """
    return lambda value: {
        key: check_field(key, checks.get(key, anything), one)
        for key, one in an_object(value).items()
    }


def check_field(name: Any, check: Check, value: Any) -> Any:
    """Check one value of an object, and name it if it is refused."""
    try:
        return check(value)
    except ValueError as error:
        raise ValueError(f'`{printable(name, 200)}`: {error}') from None


number_or_none = or_default(json_number)
finite = or_default(number)
_MAX_TEXT_CHARS, _MAX_LIST, _MAX_KEYS, _MAX_DEPTH = 600, 24, 64, 5


def whole(value: Any) -> int:
    """A count; 0 for anything that is none."""
    return int(finite(value) or 0)


def text_or_empty(value: Any) -> str:
    """A text that is not too long; '' for anything else."""
    return shorten(value) if isinstance(value, str) else ''


def texts(value: Any) -> list[str]:
    """The texts of a list."""
    items = value if isinstance(value, list) else []
    return [shorten(one) for one in items[:_MAX_LIST] if isinstance(one, str)]


def mapping(value: Any) -> dict[str, Any]:
    """An object, or an empty one."""
    return value if isinstance(value, dict) else {}


def shorten(value: Any, most: int = 6000) -> Any:
    """Cut a value to a readable length.

    Args:
        value (Any): Plain types.
        most (int): Characters of all its texts. Defaults to 6000.
    """
    room = most

    def cut(value: Any, depth: int) -> Any:
        nonlocal room
        if isinstance(value, str):
            longest = min(_MAX_TEXT_CHARS, room)
            room -= min(len(value), longest)
            more = len(value) - longest
            return value if more <= 0 else f'{value[:longest]}… (+{more})'
        if not isinstance(value, (list, dict)):
            return value
        if depth == 0 or room <= 0:
            return '…'
        if isinstance(value, list):
            return [cut(one, depth - 1) for one in value[:_MAX_LIST]]
        return {
            cut(key, 0): cut(one, depth - 1)
            for key, one in list(value.items())[:_MAX_KEYS]
            if room > 0
        }

    return cut(value, _MAX_DEPTH)
