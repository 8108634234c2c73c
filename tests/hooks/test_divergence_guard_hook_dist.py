"""A fault of one process, and all of them go back."""

from __future__ import annotations

import pytest
import torch
from mmengine.model import MMDistributedDataParallel

from tests.ranks import run_ranks
from tests.recovery.runs import Diary, Jump, Poison
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
            Jump([15] if mine else [], 1e4),
            dict(
                type='mmstable.DivergenceGuardHook',
                snapshot_interval=4,
                spike=dict(window=10, warmup=5, threshold=9.0),
                actions=dict(spike='rollback'),
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
    assert [d[:3] for d in done] == [(7, 'poisoned', 4), (15, 'spike', 11)]
    assert done[0][3][0].name == 'state_dict.net.head.weight'
    assert_same(first, second)
    assert all(value.isfinite().all() for value in first.values())
