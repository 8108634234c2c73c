"""Few points show the same line as many."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mmstable.report.history import (
    History,
    Series,
    Start,
    as_lists,
    decimate,
    ordered,
)


def series(*points):
    made = Series()
    for x, y in points:
        made.add(x, y)
    return made


def test_extremes_and_ends_are_kept():
    y = np.sin(np.arange(100_000) / 50.0)
    y[77_777], y[12_345] = 1e6, -1e6

    few_x, few_y = decimate(np.arange(100_000.0), y)

    assert len(few_x) <= 4000
    assert few_y.max() == 1e6 and few_x[few_y.argmax()] == 77_777
    assert few_y.min() == -1e6
    assert (few_x[0], few_x[-1]) == (0, 99_999)
    assert (np.diff(few_x) > 0).all()


def test_values_that_are_not_finite_hide_no_extreme():
    y = np.ones(10_000)
    y[::2] = math.nan
    y[5001] = 9.0

    _, few = decimate(np.arange(10_000.0), y)

    assert np.nanmax(few) == 9.0


def test_short_series_are_left_alone():
    x = np.arange(10.0)
    assert decimate(x, x)[0] is x


def test_what_a_restart_gave_up_is_left_out():
    first = series((10, 1.0), (20, 2.0), (30, 3.0))
    second = series((20, 5.0), (40, 6.0))

    starts = [
        Start(Path(), SimpleNamespace(iteration=iteration))
        for iteration in (0, 15)
    ]
    joined = History(Path(), starts).joined([first, second])

    assert list(joined.x) == [10, 20, 40]
    assert list(joined.y) == [1.0, 5.0, 6.0]


def test_the_last_of_several_values_counts():
    x, y = ordered(series((3, 1.0), (1, 2.0), (3, 4.0)))
    assert x.tolist() == [1, 3]
    assert y.tolist() == [2.0, 4.0]


@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
def test_a_page_gets_null_for_what_is_not_finite(value):
    assert as_lists(series((1, value), (2, 0.5))) == {
        'x': [1, 2],
        'y': [None, 0.5],
    }


def test_an_empty_series():
    assert as_lists(Series()) == {'x': [], 'y': []}
