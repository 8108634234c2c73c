"""Steps and losses in, incidents out; without a runner."""

from __future__ import annotations

import pytest

from mmstable.events import Fault, Outcome, StepReport
from mmstable.recovery.detector import DivergenceDetector

SPIKES = dict(window=10, warmup=5, threshold=9.0)


def make(**limits):
    settings = dict(
        window=20, max_rate=0.5, max_consecutive_bad=3, calibration_steps=0
    )
    detector = DivergenceDetector({**settings, **limits}, SPIKES)
    detector.follow(['a', 'b'])
    return detector


def good(iteration, norm=None):
    return StepReport.now(iteration, outcome=Outcome.APPLIED, grad_norm=norm)


def bad(iteration, fault=Fault.NAN_LOSS):
    return StepReport.now(iteration, outcome=Outcome.SKIPPED, fault=fault)


def judge(detector, *reports, name='a'):
    found, applied = [], 0
    for report in reports:
        applied += report.applied
        found.append(detector.judge_step(name, report, applied))
    return found


def test_bad_steps_in_a_row_are_an_incident():
    *before, incident = judge(make(), good(1), bad(2), bad(3), bad(4))
    assert before == [None] * 3
    assert (incident.fault, incident.since) == (Fault.NAN_LOSS, 2)
    assert incident.subject == 'a'
    assert incident.reason == '3 of the last 4 steps were bad, 3 in a row'


def test_a_good_step_ends_a_series():
    detector = make()
    assert (
        judge(detector, bad(1), bad(2), good(3), bad(4), bad(5)) == [None] * 5
    )
    assert not detector.is_calm
    assert detector.since(5) == 4


def test_the_rate_of_bad_steps_counts_over_a_window():
    detector = make(max_rate=0.2, least=10)
    reports = [bad(i) if i % 3 == 2 else good(i) for i in range(1, 12)]
    *before, incident = judge(detector, *reports)
    assert before == [None] * 10
    assert incident.reason == '4 of the last 11 steps were bad, 1 in a row'


def test_a_series_of_one_optimizer_is_not_ended_by_another():
    detector = make(max_consecutive_bad=9)
    for iteration in (1, 2, 3):
        judge(detector, bad(iteration), name='a')
        judge(detector, good(iteration), name='b')
    assert not detector.is_calm
    assert detector.since(3) == 1


def test_overflows_at_the_start_are_the_scale_finding_its_level():
    detector = make(calibration_steps=2)
    overflows = [bad(i, Fault.OVERFLOW) for i in range(1, 6)]
    assert judge(detector, *overflows) == [None] * 5
    assert detector.is_calm
    later = [good(6), good(7), *(bad(i, Fault.OVERFLOW) for i in (8, 9, 10))]
    assert judge(detector, *later)[-1].fault is Fault.OVERFLOW


def test_spikes_of_loss_and_norm():
    detector = make()
    for iteration in range(1, 10):
        assert detector.judge_loss(iteration, 1.0) is None
        assert judge(detector, good(iteration, norm=2.0)) == [None]
    assert detector.judge_loss(10, None) is None
    incident = detector.judge_loss(10, 1000.0)
    assert (incident.fault, incident.subject) == (Fault.SPIKE, 'loss')
    assert incident.reason == 'loss jumped to 1000 from a level of 1'
    (incident,) = judge(detector, good(10, norm=2000.0))
    assert (incident.fault, incident.subject) == (Fault.SPIKE, 'grad_norm')
    assert detector.is_spike('a', 1000.0, 2.0)
    assert detector.is_spike('a', 1.0, 2000.0)
    assert not detector.is_spike('a', 1.0, 2.0)


def test_after_an_intervention_it_starts_over():
    detector = make()
    judge(detector, bad(1), bad(2))
    detector.start_over()
    assert detector.is_calm
    assert judge(detector, bad(3), bad(4)) == [None, None]


@pytest.mark.parametrize('cut', range(4))
def test_a_resume_in_the_middle_ends_the_same(cut):
    reports = [good(1), bad(2), bad(3), bad(4)]
    first, second = make(), make()
    judge(first, *reports[:cut])
    second.load_state_dict(first.state_dict())
    assert judge(second, *reports[cut:]) == judge(make(), *reports)[cut:]
