"""The peak of a series, and the window of its newest numbers."""

from __future__ import annotations

import math
import random

import pytest

from mmstable.guard.rollback import LearningRateFactor
from mmstable.optim.clipping import SortedWindow
from mmstable.optim.pending_step import Peak


def fed(values, **settings):
    peak = Peak(**settings)
    found = []
    for place, value in enumerate(values):
        if value > peak.limit:
            found.append(place)
        peak.observe(value)
    return peak, found


def test_ten_times_the_peak_is_suspicious():
    assert fed([1.0] * 60 + [9.9])[1] == []
    assert fed([1.0] * 60 + [10.1])[1] == [60]


def test_nothing_is_before_step_50():
    assert fed([1.0] * 49 + [1e9])[1] == []
    assert fed([1.0] * 50 + [1e9])[1] == [50]


def test_what_was_seen_once_is_known():
    assert fed([1.0] * 60 + [1e3, 1.0, 9e3, 1.0, 8e4])[1] == [60]


def test_the_peak_of_the_first_steps_counts():
    assert fed([1e3] + [1.0] * 100 + [5e3])[1] == []


def test_the_peak_fades():
    peak, _ = fed([1.0] * 50)
    for _ in range(10_000):
        peak.observe(1e-6)
    assert peak.peak == pytest.approx(math.exp(-1), rel=1e-3)


def test_losses_below_zero_count_by_their_magnitude():
    assert fed([-5.0] * 60 + [49.0])[1] == []
    assert fed([-5.0] * 60 + [51.0])[1] == [60]


def test_zeros_have_no_peak():
    assert fed([0.0] * 100 + [5.0])[1] == []


def test_a_resume_in_the_middle_ends_the_same():
    draw = random.Random(0)
    values = [draw.lognormvariate(0, 2) for _ in range(200)]
    for cut in (10, 50, 120):
        whole, _ = fed(values)
        first, _ = fed(values[:cut])
        second = Peak()
        second.load_state_dict(Peak.saved(first.state_dict()))
        for value in values[cut:]:
            second.observe(value)
        assert second.state_dict() == whole.state_dict()
        assert second.limit == whole.limit


def test_quantiles_are_those_of_the_newest():
    window = SortedWindow(5)
    for value in [9, 9, 9, 5, 1, 3, 2, 4]:
        window.append(value)
    assert [window.quantile(q) for q in (0, 0.25, 0.5, 0.9, 1)] == [
        1, 2, 3, pytest.approx(4.6), 5,
    ]  # fmt: skip
    assert (len(window), list(window)) == (5, [5, 1, 3, 2, 4])


def test_a_cut_recovers_in_a_straight_line():
    ramp = LearningRateFactor(10)
    assert ramp.at(3) == 1.0
    ramp.cut(100)
    assert [ramp.at(i) for i in (100, 105, 110, 200)] == [
        0.5, 0.75, 1.0, 1.0,
    ]  # fmt: skip


def test_cuts_multiply_and_have_an_end():
    ramp = LearningRateFactor(10)
    ramp.cut(0)
    ramp.cut(5)
    assert ramp.at(5) == 0.375
    for _ in range(30):
        ramp.cut(5)
    assert ramp.at(5) == 1e-3


def test_a_cut_without_recovery_stays():
    ramp = LearningRateFactor(0)
    ramp.cut(10)
    assert ramp.at(10**6) == 0.5


def test_a_ramp_can_start_low_and_be_resumed():
    ramp = LearningRateFactor(10, start=0.2, start_length=4)
    assert [ramp.at(i) for i in range(5)] == pytest.approx(
        [0.2, 0.4, 0.6, 0.8, 1.0]
    )


def test_a_cut_does_not_shorten_the_warm_up():
    ramp = LearningRateFactor(10, start=0.2, start_length=100)
    warm = ramp.at(50)
    ramp.cut(50)
    assert ramp.at(50) == pytest.approx(0.5 * warm)
    assert ramp.at(60) == pytest.approx(0.2 + 0.8 * 0.6)
    other = LearningRateFactor(10, start=0.2, start_length=100)
    other.load_state_dict(ramp.state_dict())
    assert other.at(55) == ramp.at(55)
