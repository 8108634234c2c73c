"""Spikes: skipped by default, and what else can be done about them."""

from __future__ import annotations

import copy

import pytest
import torch
from mmengine.optim import OptimWrapperDict

from mmstable import SafeOptimWrapper
from mmstable.events import Action, Fault
from mmstable.report import read_events
from tests.loops.runs import log_of
from tests.recovery.runs import CAREFUL, FUSED, SPIKES, Jump, run, stopped
from tests.toys import Sabotage, ToyModel, assert_same, toy_runner, weights

LOGGER = dict(type='mmstable.GradNanLoggerHook')


def test_a_spike_is_skipped_by_default(tmp_path):
    faults = [Jump([10]), LOGGER]
    runner = run(tmp_path, dict(spike=SPIKES), faults, CAREFUL, iters=11)
    (done,) = runner.diary.done
    assert (done.iteration, done.fault, done.action) == (
        10,
        Fault.SPIKE,
        Action.SKIP,
    )
    (bad,) = runner.diary.bad
    assert (bad.fault, bad.skipped) == (Fault.SPIKE, True)
    assert bad.loss > 100
    assert_same(runner.diary.states[10], runner.diary.states[9])
    text = log_of(runner)
    assert 'Iter 10: spike: loss jumped to ' in text
    assert 'Iter 10: spike (loss ' in text


def test_a_spike_can_be_a_mere_warning(tmp_path):
    guard = dict(spike=SPIKES, actions=dict(spike='warn'))
    runner = run(tmp_path, guard, [Jump([10])], CAREFUL, iters=11)
    assert {(d.iteration, d.fault, d.action) for d in runner.diary.done} == {
        (10, Fault.SPIKE, Action.WARN)
    }
    assert runner.diary.bad == []


def test_a_spike_can_lead_back(tmp_path):
    guard = dict(spike=SPIKES, actions=dict(spike='rollback'))
    runner = run(tmp_path, guard, [Jump([10])], CAREFUL, iters=10)
    (done,) = runner.diary.done
    assert (done.action, done.restored) == (Action.ROLLBACK, 8)
    assert_same(runner.diary.states[10], runner.diary.states[8])


def test_spikes_of_a_stock_wrapper_are_seen(tmp_path):
    guard = dict(spike=SPIKES, actions=dict(spike='rollback'))
    stock = dict(CAREFUL, type='OptimWrapper')
    runner = run(tmp_path, guard, [Jump([10])], stock, iters=10)
    (done,) = runner.diary.done
    assert (done.subject, done.action) == ('loss', Action.ROLLBACK)
    assert 'backward' not in vars(runner.optim_wrapper)


def test_a_spike_inside_a_window_waits_for_its_end(tmp_path):
    runner = run(
        tmp_path,
        dict(spike=SPIKES, actions=dict(spike='rollback')),
        [Jump([29])],
        dict(CAREFUL, accumulative_counts=4),
        iters=32,
    )
    assert runner.diary.done[0].iteration == 32


@pytest.mark.parametrize('wrapper', [CAREFUL, FUSED], ids=['plain', 'fused'])
def test_a_healthy_run_is_the_same_with_the_default_guard(tmp_path, wrapper):
    def train(folder, hooks):
        runner = toy_runner(
            tmp_path / folder, copy.deepcopy(wrapper), 150, hooks
        )
        runner.train()
        assert runner.optim_wrapper.skipped_steps == 0
        return weights(runner.model)

    guard = dict(type='mmstable.DivergenceGuardHook')
    assert_same(train('with', [guard]), train('without', []))


def test_the_limits_are_known_after_a_resume(tmp_path):
    run(
        tmp_path,
        dict(spike=SPIKES),
        wrapper=CAREFUL,
        iters=10,
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', interval=10, by_epoch=False)
        ),
    )
    runner = run(
        tmp_path / 'rest',
        dict(spike=SPIKES),
        [Jump([11])],
        CAREFUL,
        iters=12,
        load_from=str(tmp_path / 'iter_10.pth'),
        resume=True,
    )
    assert [d.iteration for d in runner.diary.done] == [11]


class Adversaries(ToyModel):
    """Losses a million times apart, stepped at different rates.

    Args:
        jumps (dict): Iteration to the part whose loss jumps in it.
    """

    def __init__(self, jumps) -> None:
        super().__init__()
        self.jumps, self.count = jumps, 0

    def train_step(self, data, optim_wrapper):
        self.count += 1
        data = self.data_preprocessor(data, True)
        for name, level in (('disc', 1e3), ('gen', 1e-3), ('gen', 1e-3)):
            if name == 'disc' and self.count % 2:
                continue
            wrapper = optim_wrapper[name]
            with wrapper.optim_context(self):
                loss = self(**data, mode='loss')['loss'] * level
            if self.jumps.get(self.count) == name:
                loss = loss * 1e4
            wrapper.update_params(loss)
            optim_wrapper.zero_grad()
            if name == 'disc':
                shown = loss.detach()
        return {} if self.count % 2 else dict(loss=shown)

    def wrappers(self):
        return OptimWrapperDict(
            disc=SafeOptimWrapper(
                torch.optim.SGD(self.net.head.parameters(), lr=1e-6)
            ),
            gen=SafeOptimWrapper(
                torch.optim.SGD(self.net.backbone.parameters(), lr=1e-2)
            ),
        )


@pytest.mark.parametrize('wrong', ['', 'disc', 'gen'])
def test_two_wrappers_have_levels_of_their_own(tmp_path, wrong):
    model = Adversaries({40: wrong})
    runner = toy_runner(
        tmp_path,
        model.wrappers(),
        45,
        [
            dict(type='mmstable.DivergenceGuardHook', spike=SPIKES),
            dict(type='mmstable.EventLogHook'),
            LOGGER,
        ],
        model=model,
    )
    runner.train()
    skipped = {
        name: wrapper.skipped_steps
        for name, wrapper in runner.optim_wrapper.items()
    }
    wanted = {'disc': 1, 'gen': 2}
    assert skipped == {
        name: count if name == wrong else 0 for name, count in wanted.items()
    }
    (path,) = tmp_path.glob('*/stability/events.jsonl')
    told = [
        e
        for e in read_events(path)
        if e.event in ('intervention', 'step_fault')
    ]
    assert {e.fault for e in told} == ({Fault.SPIKE} if wrong else set())
    if wrong:
        assert f'Iter 40 [{wrong}]: spike (loss ' in log_of(runner)
        assert f'spike: {wrong}/loss jumped to ' in log_of(runner)


HUGE = {6: ('net.head.weight', 1e25)}
ADAM = dict(type='AdamW', lr=0.01)


@pytest.mark.parametrize('at', [1, 6])
@pytest.mark.parametrize('fused', [False, True])
def test_squares_that_overflow_the_optimizer_are_a_spike(tmp_path, fused, at):
    runner = run(
        tmp_path,
        faults=[Sabotage(grads={at: HUGE[6]})],
        wrapper=dict(CAREFUL, optimizer=dict(ADAM, fused=fused)),
        iters=8,
    )
    (bad,) = runner.diary.bad
    assert (bad.iteration, bad.fault, bad.skipped) == (at, Fault.SPIKE, True)
    assert bad.grad_norm == pytest.approx(1e25)
    optimizer = runner.optim_wrapper.optimizer
    for state in optimizer.state.values():
        assert state['exp_avg_sq'].isfinite().all()
    if at > 1:
        assert_same(runner.diary.states[at], runner.diary.states[at - 1])


@pytest.mark.parametrize(
    'settings',
    [
        dict(optimizer=dict(type='SGD', lr=1e-30)),
        dict(optimizer=ADAM, clip_grad=dict(max_norm=1.0)),
        dict(optimizer=ADAM, clip_grad=dict(type='value', clip_value=1.0)),
    ],
    ids=['no_squares', 'clipped', 'clipped_by_value'],
)
def test_huge_gradients_that_do_no_harm_are_applied(tmp_path, settings):
    runner = run(
        tmp_path,
        faults=[Sabotage(grads=HUGE)],
        wrapper=dict(CAREFUL, **settings),
        iters=8,
    )
    assert runner.optim_wrapper.applied_steps == 8


def test_steps_that_the_optimizer_can_never_hold_end_the_run(tmp_path):
    huge = dict.fromkeys(range(4, 99), HUGE[6])
    error = stopped(
        tmp_path,
        dict(max_rollbacks=1),
        [Sabotage(grads=huge)],
        wrapper=dict(CAREFUL, optimizer=ADAM),
    )
    assert 'because of spike since iteration ' in str(error)
