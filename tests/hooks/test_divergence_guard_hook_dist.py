"""A fault of one process, and all of them go back."""

from __future__ import annotations

import pytest
import torch
from mmengine.model import MMDistributedDataParallel

from mmstable.loops.train_step import TrainStep
from tests.guard.runs import Diary, Jump, Poison
from tests.ranks import run_ranks
from tests.toys import ToyModel, assert_same, toy_runner, weights

pytestmark = pytest.mark.dist


class Inner(Poison):
    """The same in a wrapped model."""

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter + 1 in self.at:
            runner.model.module.net.head.weight.data[0, 0] = float('nan')


def train(rank, folder):
    diary = Diary()
    mine = rank == 1
    runner = toy_runner(
        folder,
        dict(
            type='mmstable.SafeOptimWrapper',
            optimizer=dict(type='SGD', lr=1e-3),
        ),
        max_iters=16,
        hooks=[
            Inner([7] if mine else []),
            dict(
                type='mmstable.DivergenceGuardHook',
                snapshot_interval=4,
            ),
            diary,
        ],
        launcher='pytorch',
        model=MMDistributedDataParallel(ToyModel()),
    )
    runner.train()
    done = [
        (d.iteration, d.fault.value, d.restored, d.culprits)
        for d in diary.done
    ]
    torch.save((done, weights(runner.model)), folder / f'{rank}.pth')


def test_all_ranks_go_back_together(tmp_path):
    run_ranks(train, tmp_path)
    (done, first), (same, second) = (
        torch.load(tmp_path / f'{rank}.pth', weights_only=False)
        for rank in range(2)
    )
    assert done == same
    assert [d[:3] for d in done] == [(7, 'poisoned', 4)]
    assert done[0][3][0].name == 'state_dict.net.head.weight'
    assert_same(first, second)
    assert all(value.isfinite().all() for value in first.values())


class JumpInside(Jump):
    """Multiplies losses of the model inside of DDP, for a whole iteration."""

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter + 1 in self.at:
            self.handle = runner.model.module.register_forward_hook(
                lambda *a: {k: v * self.factor for k, v in a[2].items()}
            )


class OnceInside(Jump):
    """The same, but gone when the step is repeated."""

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter + 1 in self.at:

            def spoil(*args):
                handle.remove()
                return {k: v * self.factor for k, v in args[2].items()}

            handle = runner.model.module.register_forward_hook(spoil)

    def after_train_iter(self, runner, *args, **kwargs):
        pass


def ask(rank, folder):
    """Rank 1 has a hard batch in 10, and a fault of its machine in 14."""
    mine = rank == 1
    for shares in (False, True):
        diary = Diary()
        results = []
        for kind in ('ours', 'stock'):
            where = folder / f'{kind}_{shares}'
            torch.manual_seed(0)
            hooks = [JumpInside([10] if mine else [], 100.0)]
            wrapper = dict(
                type='OptimWrapper', optimizer=dict(type='SGD', lr=1e-3)
            )
            cfg = dict(by_epoch=False, max_iters=12, val_interval=10**6)
            if kind == 'ours':
                wrapper['type'] = 'mmstable.SafeOptimWrapper'
                cfg = dict(
                    type='mmstable.SafeIterBasedTrainLoop', max_iters=16
                )
                hooks += [
                    OnceInside([14] if mine else [], 1e6),
                    dict(
                        type='mmstable.DivergenceGuardHook',
                        spike=dict(warmup=5),
                    ),
                    diary,
                ]
            runner = toy_runner(
                where,
                wrapper,
                12,
                hooks,
                train_cfg=cfg,
                launcher='pytorch',
                model=MMDistributedDataParallel(
                    ToyModel(), gradient_as_bucket_view=shares
                ),
            )
            runner.train()
            results.append(runner)
        ours, stock = results
        assert_same(diary.states[12], weights(stock.model))
        assert [(one.iteration, one.fault.value) for one in diary.bad] == [
            (14, 'transient')
        ]
        assert_same(diary.states[14], diary.states[13])
        assert ours.optim_wrapper.applied_steps == 15
        assert diary.done == []


def test_all_ranks_repeat_a_step_together(tmp_path):
    run_ranks(ask, tmp_path)


class Held(Diary):
    """Notes held steps, too."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str] = []

    def after_event(self, runner, event):
        if event.event == 'held_step':
            self.reasons.append(event.reason)


def fail(rank, folder):
    """Rank 1 cannot repeat its batch: both apply the step."""
    diary, asked, ask_again = Held(), [], TrainStep.ask_again

    class Failing(ToyModel):
        def forward(self, *args, **kwargs):
            if asked and rank == 1:
                raise MemoryError('none left')
            return super().forward(*args, **kwargs)

    def ask_noted(*args):
        asked.append(args)
        try:
            return ask_again(*args)
        finally:
            asked.clear()

    # In a process of its own.
    TrainStep.ask_again = ask_noted
    for unused in (False, True):
        runner = toy_runner(
            folder / f'{rank}_{unused}',
            dict(
                type='mmstable.SafeOptimWrapper',
                optimizer=dict(type='SGD', lr=1e-3),
            ),
            12,
            [
                JumpInside([10], 100.0),
                dict(
                    type='mmstable.DivergenceGuardHook', spike=dict(warmup=5)
                ),
                diary,
            ],
            train_cfg=dict(
                type='mmstable.SafeIterBasedTrainLoop', max_iters=12
            ),
            launcher='pytorch',
            model=MMDistributedDataParallel(
                Failing(), find_unused_parameters=unused
            ),
        )
        runner.train()
        assert runner.optim_wrapper.applied_steps == 12
    expected = ['another rank cannot', 'MemoryError: none left'][rank]
    assert len(diary.reasons) == 2
    assert all(one.startswith(expected) for one in diary.reasons)


def test_a_rank_that_cannot_repeat_a_step_keeps_no_other_waiting(tmp_path):
    run_ranks(fail, tmp_path)
