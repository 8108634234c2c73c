"""A fault of one process, obeyed by the hooks of all."""

from __future__ import annotations

import pytest
import torch
from mmengine.model import MMDistributedDataParallel

from mmstable.hooks import SafeEMAHook
from tests.hooks.test_safe_ema_hook import average
from tests.hooks.test_safe_param_scheduler_hook import OURS, SCHEDULE, Rates
from tests.ranks import run_ranks
from tests.toys import Sabotage, ToyModel, assert_same, read_saved, toy_runner

pytestmark = pytest.mark.dist


def train(rank, folder):
    rates = Rates()
    runner = toy_runner(
        folder,
        max_iters=6,
        hooks=[
            Sabotage(inputs=[2] if rank == 1 else []),
            SafeEMAHook(momentum=0.2),
            rates,
        ],
        launcher='pytorch',
        model=MMDistributedDataParallel(ToyModel()),
        param_scheduler=SCHEDULE,
        default_hooks=dict(param_scheduler=OURS),
    )
    runner.train()
    torch.save((rates.of(), average(runner)), folder / f'{rank}.pth')


def test_both_ranks_obey(tmp_path):
    run_ranks(train, tmp_path)
    (rates, first), (same_rates, second) = (
        read_saved(tmp_path / f'{rank}.pth') for rank in range(2)
    )
    assert rates == same_rates
    assert rates[2] == rates[1] != rates[3]
    assert first['steps'] == 5
    assert_same(first, second)
