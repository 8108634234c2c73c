"""JSON of others, parsed in bounds and checked."""

from __future__ import annotations

import pytest

from mmstable.io.schema import (
    boolean,
    integer,
    list_of,
    number,
    one_of,
    optional,
    parse_json,
    record,
    text,
    tuple_of,
)

POINT = record(x=number, name=text(3))


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (b'[1, 2', 'Expecting'),
        (b'\xff', "can't decode byte"),
        (b'[' * 90, 'Expecting value'),
        (b'[' * 10**5, 'has more than 100 bytes'),
        (b'123456789012345678901', 'has a number of 21 digits'),
    ],
)
def test_what_is_no_json_in_bounds(content, message):
    with pytest.raises(ValueError, match=message):
        parse_json(content, 100)


def test_deep_json():
    with pytest.raises(ValueError, match='is nested too deeply'):
        parse_json(b'[' * 10**5, 10**6)


@pytest.mark.parametrize(
    ('check', 'value'),
    [
        (integer(0, 3), 3),
        (number, 2),
        (number, 0.5),
        (boolean, False),
        (text(2), 'ab'),
        (one_of('', 'loss'), ''),
        (optional(number), None),
        (optional(number), 1.0),
        (list_of(integer(), 2), [1, 2]),
        (POINT, {'x': 1.0, 'name': 'abc'}),
    ],
)
def test_what_passes_comes_back(check, value):
    assert check(value) == value


def test_a_tuple_comes_back_as_one():
    assert tuple_of(integer(), text())([1, 'a']) == (1, 'a')


@pytest.mark.parametrize(
    ('check', 'value', 'message'),
    [
        (integer(0, 3), 4, 'must be 0 to 3, got 4'),
        (integer(0, 3), -1, 'must be 0 to 3, got -1'),
        (integer(), True, 'must be an integer, got True'),
        (integer(), 1.0, 'must be an integer, got 1.0'),
        (number, True, 'must be a number, got True'),
        (number, '1', "must be a number, got '1'"),
        (number, float('inf'), 'must be finite, got inf'),
        (number, float('nan'), 'must be finite, got nan'),
        (boolean, 0, 'must be true or false, got 0'),
        (text(2), 'abc', 'must have at most 2 characters, has 3'),
        (text(), None, 'must be a string, got None'),
        (one_of('', 'loss'), 'grad', "must be one of '', 'loss', got 'grad'"),
        (one_of('', 'loss'), [], r"must be one of '', 'loss', got \[\]"),
        (optional(boolean), 1, 'must be true or false, got 1'),
        (list_of(boolean, 1), [True, True], 'at most 1 entries, has 2'),
        (list_of(boolean, 1), {}, 'must be an array, got {}'),
        (list_of(boolean, 1), [1], 'must be true or false, got 1'),
        (tuple_of(boolean), [], r'must be an array of 1, got \[\]'),
        (tuple_of(boolean), True, 'must be an array of 1, got True'),
        (POINT, [], r'must be an object, got \[\]'),
        (POINT, {'x': 1}, r"must have the keys x, name, got \['x'\]"),
        (POINT, {'x': 1, 'name': '', 'y': 1}, 'must have the keys x, name'),
        (POINT, {'x': '\x1b', 'name': ''}, r"`x`: .* got '\\x1b'"),
    ],
)
def test_what_does_not_pass_is_named(check, value, message):
    with pytest.raises(ValueError, match=message):
        check(value)


@pytest.mark.parametrize(
    'check', [integer(), number, boolean, text(), POINT, tuple_of(number)]
)
def test_reasons_are_short(check):
    huge = [['x' * 10**6] * 100] * 1000
    with pytest.raises(ValueError, match='must') as info:
        check(huge)
    assert len(str(info.value)) < 800
