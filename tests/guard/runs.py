"""Runs that diverge, and notes of what is done about it."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from mmengine.hooks import Hook

from mmstable.errors import TrainingDiverged
from tests.toys import NAN, ToyModel, toy_runner, weights

FUSED = dict(
    type='mmstable.SafeAmpOptimWrapper',
    loss_scale=64.0,
    optimizer=dict(type='AdamW', lr=0.01, fused=True),
)
PLAIN = dict(
    type='mmstable.SafeOptimWrapper',
    optimizer=dict(type='SGD', lr=0.1, momentum=0.9),
)
STOCK = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.1))
SCHEDULE = [dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=50)]
SPIKES = dict(warmup=5, factor=10.0)
CAREFUL = dict(
    type='mmstable.SafeOptimWrapper', optimizer=dict(type='SGD', lr=1e-3)
)


def safe_checkpoints(interval, **settings):
    """Settings of ``default_hooks`` for checkpoints that can be verified."""
    checkpoint = dict(
        type='mmstable.SafeCheckpointHook',
        interval=interval,
        by_epoch=False,
        **settings,
    )
    return dict(checkpoint=checkpoint)


class Poison(Hook):
    """Writes NaN somewhere, right before an iteration."""

    priority = 'HIGHEST'

    def __init__(self, at, where='weight') -> None:
        self.at, self.where = at, where

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter + 1 not in self.at:
            return
        weight = runner.model.net.head.weight
        if self.where == 'weight':
            weight.data[0, 0] = NAN
        else:
            runner.optim_wrapper.optimizer.state[weight][self.where].fill_(NAN)


class Blow(Hook):
    """Makes weights so large, before an iteration, that losses are Inf.

    Steps stay bad until the weights go back.
    """

    # After the snapshot of the guard.
    priority = 'LOWEST'

    def __init__(self, at) -> None:
        self.at = at

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter + 1 in self.at:
            runner.model.net.head.weight.data.mul_(1e25)


class Jump(Hook):
    """Multiplies the loss of some iterations."""

    priority = 'HIGHEST'

    def __init__(self, at, factor=1000.0) -> None:
        self.at, self.factor = at, factor
        self.handle = None

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter + 1 in self.at:
            self.handle = runner.model.register_forward_hook(
                lambda *a: {k: v * self.factor for k, v in a[2].items()}
            )

    def after_train_iter(self, runner, *args, **kwargs):
        if self.handle is not None:
            self.handle.remove()


class Diary(Hook):
    """Notes what training is done with, and what is done about it."""

    priority = 'LOWEST'

    def __init__(self) -> None:
        self.lr: list[float] = []
        self.states: dict[int, dict] = {}
        self.done: list = []
        self.bad: list = []

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.lr.append(runner.optim_wrapper.get_lr()['lr'][0])

    def after_train_iter(self, runner, *args, **kwargs):
        self.states[runner.iter + 1] = weights(runner.model)

    def after_intervention(self, runner, intervention):
        self.done.append(intervention)

    def after_bad_step(self, runner, report):
        self.bad.append(report)


def run(folder, guard=None, faults=(), wrapper=PLAIN, iters=12, **kwargs):
    diary = Diary()
    settings = dict(
        type='mmstable.DivergenceGuardHook',
        **{
            'snapshot_interval': 4,
            'max_consecutive_bad': 2,
            **(guard or {}),
        },
    )
    runner = toy_runner(
        folder,
        copy.deepcopy(wrapper),
        iters,
        [*faults, settings, diary, dict(type='mmstable.EventLogHook')],
        **kwargs,
    )
    runner.diary = diary
    runner.train()
    return runner


def stopped(folder, guard=None, faults=None, **kwargs):
    with pytest.raises(TrainingDiverged) as caught:
        run(folder, guard, faults or [Poison(range(6, 99))], **kwargs)
    return caught.value


def diagnosis(folder: Path) -> dict:
    (path,) = folder.glob('*/stability/diagnosis.json')
    return json.loads(path.read_text(encoding='utf-8'))


class Predicting(ToyModel):
    def forward(self, inputs, targets, number=None, mode='tensor'):
        outputs = super().forward(inputs, targets, mode)
        return list(outputs) if mode == 'predict' else outputs
