"""Which overflows are a search, and which are a fault."""

import pytest

from mmstable.events import Fault, Outcome, StepReport
from mmstable.numerics.step_statistics import StepStatistics


def step(before=64.0, after=64.0, fault=None):
    outcome = Outcome.SKIPPED if fault else Outcome.APPLIED
    return StepReport(1, outcome, fault, before, after)


GOOD, GROWN = step(), step(64.0, 128.0)
OVERFLOW = step(128.0, 64.0, Fault.OVERFLOW)


def fed(*reports, calibration_steps=0):
    statistics = StepStatistics(20, 0.05, 3, calibration_steps)
    return statistics, [statistics.add(report) for report in reports]


def test_the_first_overflow_after_a_growth_is_a_search():
    _, alarming = fed(GOOD, GROWN, GOOD, OVERFLOW, OVERFLOW, GOOD, OVERFLOW)
    assert alarming == [False] * 4 + [True, False, True]


def test_a_scale_that_grows_often_is_no_fault():
    statistics, alarming = fed(*[GOOD, GROWN, OVERFLOW] * 30)
    assert not any(alarming)
    assert not statistics.alarming.is_too_high
    assert statistics.overall.is_too_high


def test_overflows_at_the_start_are_a_search():
    _, alarming = fed(OVERFLOW, OVERFLOW, GOOD, OVERFLOW, calibration_steps=1)
    assert alarming == [False, False, False, True]


@pytest.mark.parametrize('fault', [Fault.NAN_LOSS, Fault.NAN_GRAD])
def test_other_faults_are_none(fault):
    _, alarming = fed(GROWN, step(fault=fault), calibration_steps=9)
    assert alarming == [False, True]


def test_a_resumed_search_goes_on():
    statistics, _ = fed(GROWN)
    other, _ = fed()
    other.load_state_dict(statistics.state_dict())
    assert other.add(OVERFLOW) is False
    assert other.add(OVERFLOW) is True
