"""Which overflows are a search, and which are a fault."""

import pytest

from mmstable.events import Fault, Outcome, StepReport
from mmstable.events.step_lines import StepStatistics


def step(before=64.0, after=64.0, fault=None):
    outcome = Outcome.SKIPPED if fault else Outcome.APPLIED
    return StepReport.now(
        1,
        outcome=outcome,
        fault=fault,
        loss_scale=before,
        next_loss_scale=after,
    )


GOOD, GROWN = step(), step(64.0, 128.0)
OVERFLOW = step(128.0, 64.0, Fault.OVERFLOW)


def fed(*reports, calibration_steps=0):
    statistics = StepStatistics(20, 0.05, 3, calibration_steps)
    applied, alarming = 0, []
    for report in reports:
        applied += report.applied
        alarming.append(statistics.add(report, applied))
    return statistics, alarming


def test_the_first_overflow_after_a_growth_is_a_search():
    _, alarming = fed(GOOD, GROWN, GOOD, OVERFLOW, OVERFLOW, GOOD, OVERFLOW)
    assert alarming == [False] * 4 + [True, False, True]


def test_a_scale_that_grows_often_is_no_fault():
    statistics, alarming = fed(*[GOOD, GROWN, OVERFLOW] * 30)
    assert not any(alarming)
    assert not statistics.is_too_high
    assert statistics.rate == pytest.approx(0.33, abs=0.03)


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
    assert other.add(OVERFLOW, applied=1) is False
    assert other.add(OVERFLOW, applied=1) is True


BAD = step(fault=Fault.NAN_LOSS)


def test_only_the_window_counts():
    statistics, _ = fed(BAD, *[GOOD] * 19)
    assert (statistics.rate, statistics.counts()) == (1 / 20, (1, 20))
    statistics.add(GOOD, 20)
    assert (statistics.rate, statistics.counts()) == (0.0, (0, 20))


def test_bad_steps_in_a_row():
    statistics, _ = fed(BAD, GOOD, BAD, BAD)
    assert (statistics.in_a_row, statistics.is_too_high) == (2, False)
    statistics.add(BAD, 1)
    assert (statistics.in_a_row, statistics.is_too_high) == (3, True)
    statistics.add(GOOD, 2)
    assert (statistics.in_a_row, statistics.is_too_high) == (0, False)


def test_a_share_takes_enough_steps():
    statistics, _ = fed(BAD, *[GOOD] * 18, BAD)
    assert statistics.is_too_high
    statistics, _ = fed(BAD, *[GOOD] * 17, BAD)
    assert not statistics.is_too_high
