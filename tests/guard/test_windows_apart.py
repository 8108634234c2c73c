"""Two optimizers whose accumulation windows never close together."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, OptimWrapperDict
from torch import nn

from mmstable import SafeOptimWrapper
from mmstable.errors import StoppedBySignal, TrainingDiverged
from mmstable.events import Action, Fault
from tests.guard.runs import diagnosis, safe_checkpoints
from tests.loops.runs import iter_loop
from tests.toys import NAN, assert_same, toy_runner, weights


class Gan(BaseModel):
    """Accumulates over 2 for the generator, 3 for the discriminator.

    The generator has one loss in the first iteration, and two in all others:
    after no iteration its window is closed.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gen = nn.Linear(4, 3)
        self.disc = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
        self.done = 0
        self.bad_from = 10**9

    def forward(self, inputs, mode='tensor'):
        return self.disc(self.gen(inputs))

    def train_step(self, data, optim_wrapper):
        inputs = self.data_preprocessor(data)['inputs']
        self.done += 1
        gen, disc = optim_wrapper['gen'], optim_wrapper['disc']
        for sign in (1, -1)[: 1 if self.done == 1 else 2]:
            with gen.optim_context(self.gen):
                fake = self.gen(sign * inputs)
            gen.update_params((fake - inputs[:, :3]).square().mean())
        with disc.optim_context(self.disc):
            score = self.disc(self.gen(inputs).detach())
        loss = (score - 1).square().mean()
        if self.done >= self.bad_from:
            loss = loss * NAN
        disc.update_params(loss)
        return dict(loss=loss.detach())


class Happenings(Hook):
    """Poisons the discriminator, and notes what is done about it."""

    def __init__(self, poison_at=()) -> None:
        self.poison_at = poison_at
        self.done: list = []

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter + 1 in self.poison_at:
            runner.model.disc[0].weight.data[0, 0] = NAN

    def after_intervention(self, runner, intervention):
        self.done.append(intervention)


def train(folder, model, poison_at=(), wrapper=None, iters=48, **kwargs):
    wrapper = wrapper or SafeOptimWrapper
    wrappers = OptimWrapperDict(
        gen=wrapper(
            torch.optim.SGD(model.gen.parameters(), lr=0.1),
            accumulative_counts=2,
        ),
        disc=wrapper(
            torch.optim.AdamW(model.disc.parameters(), lr=0.01),
            accumulative_counts=3,
        ),
    )
    hooks = [Happenings(poison_at)]
    if wrapper is SafeOptimWrapper:
        hooks.append(
            dict(
                type='mmstable.DivergenceGuardHook',
                snapshot_interval=4,
                max_consecutive_bad=2,
            )
        )
    hooks.extend(kwargs.pop('hooks', ()))
    runner = toy_runner(folder, wrappers, iters, hooks, model=model, **kwargs)
    runner.happenings = hooks[0]
    runner.train()
    return runner


def test_the_windows_are_never_closed_together(tmp_path):
    class Look(Hook):
        def after_train_iter(self, runner, *args, **kwargs):
            gen = runner.optim_wrapper['gen']
            assert not gen.should_update()

    runner = train(tmp_path, Gan(), hooks=[Look()], iters=12)
    assert runner.optim_wrapper['gen'].applied_steps == 11
    assert runner.optim_wrapper['disc'].applied_steps == 4


def test_a_healthy_run_is_that_of_mmengine(tmp_path):
    ours = train(tmp_path / 'ours', Gan())
    theirs = train(tmp_path / 'theirs', Gan(), wrapper=OptimWrapper)
    assert_same(weights(ours.model), weights(theirs.model))
    for name in ('gen', 'disc'):
        assert_same(
            ours.optim_wrapper[name].optimizer.state_dict(),
            theirs.optim_wrapper[name].optimizer.state_dict(),
        )
    assert ours.happenings.done == []


def test_poison_is_rolled_back_to_a_late_snapshot(tmp_path):
    runner = train(tmp_path, Gan(), poison_at=[29])
    (done,) = runner.happenings.done
    assert (done.action, done.fault) == (Action.ROLLBACK, Fault.POISONED)
    # Snapshots every 6 iterations, which 2 and 3 divide.
    assert done.restored == 24
    assert done.iteration == 30
    disc = runner.optim_wrapper['disc']
    assert disc.last_step.applied
    assert disc.skipped_steps <= 3
    assert all(v.isfinite().all() for v in weights(runner.model).values())


def test_poison_that_comes_back_stops_the_run(tmp_path):
    with pytest.raises(TrainingDiverged, match='disc.0.weight'):
        train(tmp_path, Gan(), poison_at=range(16, 999), iters=100)
    found = diagnosis(tmp_path)['stop']
    assert found['fault'] == 'poisoned'
    assert found['iteration'] < 50


def test_losses_that_stay_nan_stop_the_run(tmp_path):
    model = Gan()
    model.bad_from = 16
    with pytest.raises(TrainingDiverged, match='nan_loss'):
        train(tmp_path, model, iters=200)
    found = diagnosis(tmp_path)['stop']
    assert (found['fault'], found['subject']) == ('nan_loss', 'disc')
    assert found['since'] >= 16


def test_the_rest_of_a_window_is_averaged_over_what_it_has(tmp_path):
    """A rollback takes one of three losses: a half is not two thirds."""
    torch.manual_seed(0)
    param = nn.Parameter(torch.ones(2))
    wrapper = SafeOptimWrapper(torch.optim.SGD([param], lr=1.0), 3)
    wrapper.update_params(100 * param.sum())
    wrapper.zero_grad()
    wrapper.reset()
    wrapper.update_params(param.sum())
    wrapper.update_params(3 * param.sum())
    assert param.tolist() == pytest.approx([-1.0, -1.0])
    report = wrapper.last_step
    assert report.fault is None and report.dropped_micro_batches == 0
    for factor in (1, 2, 3):
        wrapper.update_params(factor * param.sum())
    assert param.tolist() == pytest.approx([-3.0, -3.0])


def test_checkpoints_are_saved(tmp_path):
    train(tmp_path, Gan(), default_hooks=safe_checkpoints(5), iters=20)
    saved = sorted(path.name for path in tmp_path.glob('iter_*.pth'))
    # At the next iteration that 6 divides, and after the last one.
    assert saved == ['iter_12.pth', 'iter_18.pth', 'iter_20.pth', 'iter_6.pth']


def test_a_signal_is_obeyed(tmp_path):
    class Stop(Hook):
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            if runner.iter + 1 == 7:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StoppedBySignal):
        train(
            tmp_path,
            Gan(),
            hooks=[Stop(), dict(type='mmstable.EmergencyCheckpointHook')],
            default_hooks=safe_checkpoints(100),
            train_cfg=iter_loop(40),
        )
    assert (tmp_path / 'emergency_iter_12.pth').exists()
