"""Text of others, shown without letting it act."""

from __future__ import annotations

import pytest

from mmstable.messages import printable, short_repr


@pytest.mark.parametrize(
    ('text', 'shown'),
    [
        ('plain text, 中文 and é', 'plain text, 中文 and é'),
        ('two\nlines\r', r'two\nlines\r'),
        ('\x1b[31mred\x07', r'\x1b[31mred\x07'),
        ('c1 \x9b31m', r'c1 \x9b31m'),
        ('gnp.exe\u202e', r'gnp.exe\u202e'),
        ('a\u2028b\u2066\x7f\0', r'a\u2028b\u2066\x7f\x00'),
        ('\udcff', r'\udcff'),
        ('', ''),
    ],
)
def test_only_what_is_printable_is_left(text, shown):
    assert printable(text) == shown
    assert printable(text).isprintable()


def test_long_text_is_cut():
    assert printable('a' * 1000, limit=3) == 'aaa... (997 more characters)'
    assert printable('\x1b' * 1000, limit=1) == (
        r'\x1b... (999 more characters)'
    )
    assert printable('abc', limit=3) == 'abc'


def test_other_things_are_shown_by_their_text():
    assert printable(ValueError('no\n')) == r'no\n'


@pytest.mark.parametrize(
    'value', [{'a': [1] * 10**5}, 'x' * 10**6, ['\x1b\u202e'], {'\n': '\0'}]
)
def test_a_short_repr_is_short(value):
    assert len(short_repr(value)) < 300
    assert short_repr(value).isprintable()


def test_a_short_repr_of_something_deep():
    deep = []
    for _ in range(10**5):
        deep = [deep]
    assert len(short_repr(deep)) < 100
