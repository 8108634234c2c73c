"""Records as lines of strict JSON, and back.

JSON has no NaN and no infinities. They are written as the strings 'NaN',
'Infinity' and '-Infinity', and read back as floats where the schema has a
float.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from typing import (
    Annotated,
    Any,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from mmstable.events.records import EVENTS, SCHEMA, Event, UnknownEvent
from mmstable.io.schema import (
    NONFINITE,
    Check,
    an_object,
    boolean,
    check_field,
    integer,
    json_number,
    list_of,
    mapping_of,
    one_of,
    optional,
    parse_json,
    text,
)
from mmstable.messages import short_repr

# Room for 70,000 culprits; JSON of that size fits in memory when parsed.
LONGEST_LINE = 1 << 22
# Levels of settings, which may be anything.
_MAX_DEPTH = 64


def encode(record: Event) -> bytes:
    """Write a record as one line, with its line end."""
    content = {'event': record.event, **plain(record)}
    line = json.dumps(content, allow_nan=False, separators=(',', ':'))
    return line.encode('ascii') + b'\n'


def decode(line: bytes, schema: int = SCHEMA) -> Event:
    """Read the record in a line.

    Args:
        line (bytes): One line of an event file.
        schema (int): What its header says. Records of a newer schema that
            make no sense here become an :class:`UnknownEvent`.

    Raises:
        ValueError: If the line is not a record.
    """
    content = parse_record(line)
    cls = EVENTS.get(check_field('event', text(), content['event']))
    if cls is None:
        return _unknown(content)
    try:
        return read_record(cls, content)
    except ValueError:
        if schema > SCHEMA:
            return _unknown(content)
        raise


def parse_record(line: bytes) -> dict[str, Any]:
    """Parse a line, and check nothing but that it has an `event`."""
    content = parse_json(line, LONGEST_LINE)
    if not isinstance(content, dict) or 'event' not in content:
        raise ValueError('must be an object with an `event`')
    return content


def _unknown(content: dict[str, Any]) -> UnknownEvent:
    _read_any(content)
    return UnknownEvent(
        iteration=integer()(content.get('iteration')),
        time=json_number(content.get('time')),
        name=content['event'],
        data=content,
    )


def plain(value: Any) -> Any:
    """Convert a value to the types of JSON; anything else to its text."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # The largest number that other readers of JSON can hold.
        return int(value) if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        # Python's JSON writes 'NaN', 'Infinity' and '-Infinity'.
        return float(value) if math.isfinite(value) else json.dumps(value)
    if isinstance(value, tuple) and hasattr(value, '_asdict'):
        value = value._asdict()
    if is_dataclass(value):
        return {
            one.name: plain(getattr(value, one.name)) for one in fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value)


def read_record(cls: Any, content: Any, is_strict: bool = False) -> Any:
    """Build a record of a class from plain data.

    A field of the type ``Annotated[kind, check]`` must pass that check, too.

    Args:
        cls (type): A dataclass or named tuple.
        content (Any): The data.
        is_strict (bool): Whether to refuse other keys, instead of ignoring
            those that a newer version writes. Defaults to False.

    Raises:
        ValueError: If the data does not fit.
    """
    an_object(content)
    values, known = {}, _fields(cls, is_strict)
    if is_strict and (more := content.keys() - {name for name, *__ in known}):
        raise ValueError(f'has an unknown key {short_repr(min(more))}')
    for name, check, is_required in known:
        if name in content:
            values[name] = check_field(name, check, content[name])
        elif is_required:
            raise ValueError(f'`{name}` is missing')
    return cls(**values)


@cache
def _fields(cls: Any, is_strict: bool) -> tuple[tuple[str, Check, bool], ...]:
    """Name, check and need of the fields of a dataclass or named tuple."""
    hints = get_type_hints(cls, include_extras=True)
    return tuple(
        (name, _check(hints[name], is_strict), one.default is one.empty)
        for name, one in inspect.signature(cls).parameters.items()
    )


def _check(kind: Any, is_strict: bool) -> Check:
    """Build the check of a type."""
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        narrow, base = args[1], _check(args[0], is_strict)
        return lambda value: base(narrow(value))
    if origin is Union:
        return optional(_check(args[0], is_strict))
    if origin is Mapping:
        key, value = (_check(one, is_strict) for one in args)
        return mapping_of(key, value)
    if origin is tuple:
        items = list_of(_check(args[0], is_strict))
        return lambda value: tuple(items(value))
    if issubclass(kind, Enum):
        word = one_of(*(member.value for member in kind))
        return lambda value: kind(word(value))
    return partial(read_record, kind, is_strict=is_strict)


def _read_any(value: Any, depth: int = _MAX_DEPTH) -> Any:
    if depth == 0:
        raise ValueError('is nested too deeply')
    if isinstance(value, dict):
        return {key: _read_any(one, depth - 1) for key, one in value.items()}
    if isinstance(value, list):
        return [_read_any(one, depth - 1) for one in value]
    return NONFINITE.get(value, value) if isinstance(value, str) else value


_SIMPLE: dict[Any, Check] = {
    bool: boolean,
    int: integer(),
    float: json_number,
    str: text(),
    Any: _read_any,
}
