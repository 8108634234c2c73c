from __future__ import annotations

import pytest

from mmstable.checkpoint.manifest import Lineage

FIRST = Lineage('a', ((1, 0),))
# Went back from wherever it was to 10, and later from 40 to 30.
BACK = Lineage.after(2, FIRST, 10)
AGAIN = Lineage.after(3, BACK, 30)


@pytest.mark.parametrize(
    ('other', 'iteration', 'expected'),
    [
        (FIRST, 10, True),
        (FIRST, 11, False),
        (BACK, 30, True),
        (BACK, 40, False),
        (AGAIN, 31, True),
        (AGAIN, 10**9, True),
        (Lineage.after(1, FIRST, 5), 6, False),
        (Lineage.after(4, AGAIN, 50), 60, False),
        (Lineage('b', ((1, 0),)), 5, False),
        (None, 5, False),
        (None, 0, True),
    ],
)
def test_what_is_of_its_past(other, iteration, expected):
    assert AGAIN.includes(other, iteration) == expected


def test_a_run_that_others_have_begun_includes_their_files():
    lineage = Lineage.after(0, None, 30)
    assert lineage.includes(None, 30)
    assert not lineage.includes(None, 31)


def test_what_is_read_is_what_was_written():
    assert Lineage.read(AGAIN.as_dict()) == AGAIN


@pytest.mark.parametrize(
    'content',
    [
        None,
        [],
        {},
        dict(run='a'),
        dict(run='a', starts=[]),
        dict(run='', starts=[[1, 0]]),
        dict(run='a' * 65, starts=[[1, 0]]),
        dict(run=1, starts=[[1, 0]]),
        dict(run='a', starts=[[1]]),
        dict(run='a', starts=[[1, -1]]),
        dict(run='a', starts=[[True, 0]]),
        dict(run='a', starts=[[2**60, 0]]),
        dict(run='a', starts='ab'),
    ],
)
def test_what_is_not_sound_is_nothing(content):
    assert Lineage.read(content) is None


def test_very_many_starts_are_forgotten_from_the_front():
    lineage = FIRST
    for number in range(2, 700):
        lineage = Lineage.after(number - 1, lineage, number)
    assert len(lineage.starts) == 500
    assert lineage.number == 699
    assert lineage.includes(FIRST, 1)
