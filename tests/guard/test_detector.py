"""Steps and losses in, incidents out; without a runner."""

from __future__ import annotations

import pytest

from mmstable.events import Fault, Outcome, StepReport
from mmstable.guard.detector import DivergenceDetector, Learning

SPIKES = dict(warmup=5)


def make(**limits):
    settings = dict(
        window=20, max_rate=0.5, max_consecutive_bad=3, calibration_steps=0
    )
    detector = DivergenceDetector({**settings, **limits}, SPIKES, True)
    detector.follow(['a', 'b'])
    return detector


def good(iteration, norm=None, loss=None):
    return StepReport.now(
        iteration, outcome=Outcome.APPLIED, grad_norm=norm, loss=loss
    )


def bad(iteration, fault=Fault.NAN_LOSS, **facts):
    return StepReport.now(
        iteration, outcome=Outcome.SKIPPED, fault=fault, **facts
    )


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
    # Two bad steps before it, and no long time between.
    assert detector.since(5) == 1


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


def test_a_falling_scale_is_no_bad_step():
    detector = make()
    falling = dict(fault=Fault.OVERFLOW, scale_can_fall=True)
    reports = [bad(i, **falling) for i in range(1, 20)]
    assert judge(detector, *reports) == [None] * 19
    assert detector.is_calm
    stuck = [bad(i, Fault.OVERFLOW) for i in (20, 21, 22)]
    assert judge(detector, *stuck)[-1].fault is Fault.OVERFLOW


def drops(iteration, dropped):
    return StepReport.now(
        iteration,
        outcome=Outcome.APPLIED,
        fault=Fault.NAN_LOSS,
        micro_batches=8,
        dropped_micro_batches=dropped,
    )


def test_dropped_micro_batches_count_against_micro_batches():
    detector = make(max_rate=0.25, least=5)
    assert judge(detector, *(drops(i, 2) for i in range(1, 20))) == [None] * 19
    assert detector.is_calm
    *before, incident = judge(detector, drops(20, 4))
    assert before == []
    assert incident.reason == '5.25 of the last 20 steps were bad, 0 in a row'
    assert incident.fault is Fault.NAN_LOSS


def test_steps_that_are_mostly_dropped_are_bad_ones():
    detector = make()
    *before, incident = judge(detector, *(drops(i, 5) for i in (1, 2, 3)))
    assert before == [None] * 2
    assert (incident.since, incident.is_series) == (1, True)


def level(detector, name, loss, norm):
    for iteration in range(1, 10):
        report = good(iteration, norm, loss)
        assert judge(detector, report, name=name) == [None]


def test_each_wrapper_has_its_own_peaks():
    detector = make()
    level(detector, 'a', 1.0, 2.0)
    level(detector, 'b', 1000.0, 0.002)
    (incident,) = judge(detector, good(10, 2.0, 1000.0))
    assert (incident.fault, incident.subject) == (Fault.SPIKE, 'a/loss')
    assert incident.reason.startswith('a/loss jumped to 1000, its peak so')
    (incident,) = judge(detector, good(10, 2.0, 1.0), name='b')
    assert (incident.fault, incident.subject) == (Fault.SPIKE, 'b/grad_norm')


def test_what_was_applied_is_the_new_peak():
    detector = make()
    level(detector, 'a', 1.0, 2.0)
    (first, second) = judge(detector, good(10, 2e3, 1.0), good(11, 2e3, 1.0))
    assert first.fault is Fault.SPIKE
    assert second is None


def test_what_was_skipped_is_not():
    detector = make()
    level(detector, 'a', 1.0, 2.0)
    spikes = [bad(i, Fault.SPIKE, grad_norm=2e9) for i in range(10, 40)]
    found = judge(detector, *spikes)
    assert all(one.is_skipped and not one.is_series for one in found)


def test_transient_faults_are_no_bad_steps():
    detector = make()
    faults = [bad(i, Fault.TRANSIENT, grad_norm=1.0) for i in range(1, 30)]
    assert judge(detector, *faults) == [None] * 29
    assert detector.is_calm


@pytest.mark.parametrize(
    'fault',
    [
        Fault.TRANSIENT,
        Fault.SPIKE,
        Fault.OOM,
        Fault.NAN_GRAD,
        Fault.NAN_LOSS,
        Fault.OVERFLOW,
    ],
)
@pytest.mark.parametrize('can_fall', [False, True])
def test_what_was_skipped_ends_no_suspicion(fault, can_fall):
    detector = make(max_consecutive_bad=9)
    judge(detector, *(good(i, 2.0, 1.0) for i in range(1, 6)))
    judge(detector, good(6, 2.0, 1e6))
    facts = dict(grad_norm=2.0, loss=1.0, scale_can_fall=can_fall)
    judge(detector, *(bad(i, fault, **facts) for i in (7, 8, 9)))
    assert not detector.is_calm
    assert detector.since(9) == 6
    judge(detector, good(10, 2.0, 1.0))
    assert detector.is_calm


@pytest.mark.parametrize('loss', [1001.0, None])
def test_five_exploded_losses_are_an_incident(loss):
    detector = make()
    judge(detector, *(good(i, 2.0, 1.0) for i in range(1, 6)))
    fault = Fault.NAN_LOSS if loss is None else None
    reports = [
        StepReport.now(i, outcome=Outcome.APPLIED, loss=loss, fault=fault)
        for i in range(6, 11)
    ]
    *before, incident = judge(detector, *reports)
    assert all(one is None or one.fault is Fault.SPIKE for one in before)
    assert (incident.fault, incident.since) == (Fault.DIVERGED, 6)
    assert incident.needs_proof
    assert detector.is_exploded and not detector.is_calm


@pytest.mark.parametrize('loss', [999.0, 0.0, -1e6])
def test_a_moderate_rise_is_none(loss):
    detector = make()
    judge(detector, *(good(i, 2.0, 1.0) for i in range(1, 6)))
    found = judge(detector, *(good(i, 2.0, loss) for i in range(6, 30)))
    assert all(one is None or one.fault is Fault.SPIKE for one in found)
    # But what was raised is nothing to go back to.
    assert detector.is_calm is (loss <= 0.0)


def test_a_level_that_was_accepted_is_usual():
    detector = make()
    judge(detector, *(good(i, 2.0, 1.0) for i in range(1, 6)))
    judge(detector, *(good(i, 2.0, 5e3) for i in range(6, 11)))
    for history in detector.histories.values():
        history.level.accept()
    assert judge(detector, *(good(i, 2.0, 5e3) for i in range(11, 30))) == (
        [None] * 19
    )
    assert detector.is_calm


def learn(*blocks):
    """Observe blocks of 200 steps, each with a loss and a norm."""
    learning = Learning()
    for loss, norm in blocks:
        for step in range(200):
            assert not learning.is_flat or step == 0
            # A spread that has no trend.
            learning.observe(loss * (1.1 if step % 2 else 0.9), norm)
    return learning


@pytest.mark.parametrize(
    ('loss', 'norm', 'is_flat', 'is_gone'),
    [
        (1.0, 1e-4, True, True),
        (1.0, 0.1, True, False),
        (0.5, 1e-4, False, True),
    ],
    ids=['dead', 'slow', 'learned'],
)
def test_a_run_that_has_stopped_learning(loss, norm, is_flat, is_gone):
    assert not learn((1.0, 1.0), *[(loss, norm)] * 2).is_flat
    learning = learn((1.0, 1.0), *[(loss, norm)] * 3)
    assert (learning.is_flat, learning.is_gone) == (is_flat, is_gone)


@pytest.mark.parametrize(
    ('losses', 'why'),
    [
        ([1.0] * 6, 'far too low'),
        ([1.0, 1.5, 1.1, 1.6, 1.2, 1.4], 'oscillates'),
        ([1.0, 1.0, 1.0, 1.0, 1.0, 0.9], ''),
        ([1.0, 0.9, 1.0, 1.0, 1.0, 1.0], ''),
        ([1.0] * 5, ''),
        ([-1.0] * 6, ''),
    ],
    ids=['slow', 'oscillating', 'late', 'forgotten', 'short', 'negative'],
)
def test_a_whole_run_that_has_learned_nothing(losses, why):
    found = learn(*((loss, 1.0) for loss in losses)).why_useless()
    assert why in found if why else not found


def test_losses_that_vary_widely_show_nothing():
    learning = Learning()
    for step in range(2000):
        learning.observe(float(step % 5 == 0), 1.0)
    assert not learning.why_useless()


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
