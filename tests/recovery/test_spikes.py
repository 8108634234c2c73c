"""A spike of the loss: warn, skip, or roll back."""

from __future__ import annotations

from mmstable.events import Action, Fault
from tests.loops.runs import log_of
from tests.recovery.runs import CAREFUL, SPIKES, Jump, run
from tests.toys import assert_same


def test_a_spike_is_a_warning_by_default(tmp_path):
    runner = run(tmp_path, dict(spike=SPIKES), [Jump([10])], CAREFUL, iters=11)
    assert {(d.iteration, d.fault, d.action) for d in runner.diary.done} == {
        (10, Fault.SPIKE, Action.WARN)
    }
    assert runner.diary.bad == []
    assert 'Iter 10: spike: ' in log_of(runner)


def test_a_spike_can_be_skipped_before_it_is_made(tmp_path):
    guard = dict(spike=SPIKES, actions=dict(spike='skip'))
    runner = run(tmp_path, guard, [Jump([10])], CAREFUL, iters=10)
    assert runner.optim_wrapper.last_step.fault is Fault.SPIKE
    assert_same(runner.diary.states[10], runner.diary.states[9])
    assert [d.action for d in runner.diary.done] == [Action.SKIP]


def test_a_spike_can_lead_back(tmp_path):
    guard = dict(spike=SPIKES, actions=dict(spike='rollback'))
    runner = run(tmp_path, guard, [Jump([10])], CAREFUL, iters=10)
    (done,) = runner.diary.done
    assert (done.action, done.restored) == (Action.ROLLBACK, 8)
    assert_same(runner.diary.states[10], runner.diary.states[8])


def test_a_spike_inside_a_window_waits_for_its_end(tmp_path):
    runner = run(
        tmp_path,
        dict(spike=SPIKES, actions=dict(spike='rollback')),
        [Jump([13])],
        dict(CAREFUL, accumulative_counts=4),
        iters=16,
    )
    assert runner.diary.done[0].iteration == 16
