"""Records as lines of strict JSON, and back.

JSON has no NaN and no infinities. They are written as the strings 'NaN',
'Infinity' and '-Infinity', and read back as floats where the schema has a
float.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Callable

from mmstable import checked_json
from mmstable.events import number_records, records, step_report
from mmstable.events.event import Event
from mmstable.events.records import EVENTS, SCHEMA, UnknownEvent
from mmstable.messages.printable import short_repr

_NONFINITE = ('NaN', 'Infinity', '-Infinity')
_Reader = Callable[[Any], Any]
# Room for 70,000 culprits; what JSON of that size becomes fits in memory.
LONGEST_LINE = 1 << 22
# Of settings, which may be anything.
_DEEPEST = 64
_read_int, _read_str = checked_json.integer(), checked_json.text()


def encode(record: Event) -> bytes:
    """One line, with its line end."""
    content = {'event': record.event, **plain(record)}
    text = json.dumps(content, allow_nan=False, separators=(',', ':'))
    return text.encode('ascii') + b'\n'


def decode(line: bytes, schema: int = SCHEMA) -> Event:
    """The record in a line.

    Args:
        line (bytes): One line of an event file.
        schema (int): What its header says. Records of a newer schema that
            make no sense here become an :class:`UnknownEvent`.

    Raises:
        ValueError: If the line is not a record.
    """
    content = parse_record(line)
    cls = EVENTS.get(_read_str(content['event']))
    if cls is None:
        return _unknown(content)
    try:
        return _read_dataclass(cls, content)
    except ValueError:
        if schema > SCHEMA:
            return _unknown(content)
        raise


def parse_record(line: bytes) -> dict[str, Any]:
    """A line as JSON; of what is in it, nothing but `event` is checked."""
    content = checked_json.parse_json(line, LONGEST_LINE)
    if not isinstance(content, dict) or 'event' not in content:
        raise ValueError('must be an object with an `event`')
    return content


def _unknown(content: dict[str, Any]) -> UnknownEvent:
    _read_any(content)
    return UnknownEvent(
        iteration=_read_int(content.get('iteration')),
        time=_read_float(content.get('time')),
        name=content['event'],
        data=content,
    )


def plain(value: Any) -> Any:
    """Only what JSON has; anything else as its text."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # What other readers of JSON can hold as a number.
        return int(value) if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _name(value)
    if isinstance(value, tuple) and hasattr(value, '_asdict'):
        value = value._asdict()
    if is_dataclass(value):
        return {
            field.name: plain(getattr(value, field.name))
            for field in fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value)


def _name(value: float) -> str:
    if math.isnan(value):
        return 'NaN'
    return 'Infinity' if value > 0 else '-Infinity'


def _read_dataclass(cls: type, content: Any) -> Any:
    if not isinstance(content, dict):
        raise ValueError(f'must be an object, got {short_repr(content)}')
    values = {}
    for name, read, required in _readers(cls):
        if name in content:
            try:
                values[name] = read(content[name])
            except ValueError as error:
                raise ValueError(f'`{name}`: {error}') from None
        elif required:
            raise ValueError(f'`{name}` is missing')
    return cls(**values)


@cache
def _readers(cls: Any) -> tuple[tuple[str, _Reader, bool], ...]:
    return tuple(
        (
            field.name,
            _reader(field.type),
            field.default is MISSING and field.default_factory is MISSING,
        )
        for field in fields(cls)
    )


def _reader(kind: Any) -> _Reader:
    """What reads a value of an annotated type, given as source text."""
    if kind.endswith(' | None'):
        read = _reader(kind[: -len(' | None')])
        return lambda value: None if value is None else read(value)
    if kind.startswith('Mapping[str, '):
        return _mapping_reader(_reader(kind[len('Mapping[str, ') : -1]))
    if kind.startswith('tuple['):
        return _tuple_reader(_reader(kind[len('tuple[') : -len(', ...]')]))
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    cls: Any = next(
        found
        for module in (records, number_records, step_report)
        if (found := getattr(module, kind, None)) is not None
    )
    if issubclass(cls, Enum):
        return _enum_reader(cls)
    if issubclass(cls, tuple):
        return _named_tuple_reader(cls)
    return lambda value: _read_dataclass(cls, value)


def _enum_reader(cls: type[Enum]) -> _Reader:
    def read_enum(value: Any) -> Enum:
        known = [member.value for member in cls]
        if _read_str(value) not in known:
            raise ValueError(
                f'must be one of {known}, got {short_repr(value)}'
            )
        return cls(value)

    return read_enum


def _named_tuple_reader(cls: Any) -> _Reader:
    readers = {
        name: _reader(_source_text(kind))
        for name, kind in cls.__annotations__.items()
    }

    def read_named_tuple(value: Any) -> Any:
        if not isinstance(value, dict) or readers.keys() - value.keys():
            raise ValueError(
                f'must have {", ".join(readers)}, got {short_repr(value)}'
            )
        return cls(*(read(value[name]) for name, read in readers.items()))

    return read_named_tuple


def _source_text(kind: Any) -> str:
    # NamedTuple wraps the text of an annotation.
    return getattr(kind, '__forward_arg__', kind)


def _mapping_reader(read: _Reader) -> _Reader:
    def read_mapping(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError(f'must be an object, got {short_repr(value)}')
        return {key: read(item) for key, item in value.items()}

    return read_mapping


def _tuple_reader(read: _Reader) -> _Reader:
    def read_tuple(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError(f'must be an array, got {short_repr(value)}')
        return tuple(read(item) for item in value)

    return read_tuple


def _read_float(value: Any) -> float:
    if value in _NONFINITE:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f'must be a number, got {short_repr(value)}')
    return float(value)


def _read_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f'must be true or false, got {short_repr(value)}')
    return value


def _read_any(value: Any, deepest: int = _DEEPEST) -> Any:
    if deepest == 0:
        raise ValueError('is nested too deeply')
    if isinstance(value, dict):
        return {
            key: _read_any(item, deepest - 1) for key, item in value.items()
        }
    if isinstance(value, list):
        return [_read_any(item, deepest - 1) for item in value]
    return float(value) if value in _NONFINITE else value


_SIMPLE: dict[str, _Reader] = {
    'bool': _read_bool,
    'int': _read_int,
    'float': _read_float,
    'str': _read_str,
    'Any': _read_any,
}
