"""Checkpoints of a run with two processes."""

from __future__ import annotations

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.model import MMDistributedDataParallel

from tests.ranks import run_ranks
from tests.toys import (
    NAN,
    ToyModel,
    assert_same,
    read_saved,
    toy_runner,
    weights,
)

pytestmark = pytest.mark.dist


class Noisy(ToyModel):
    """Every rank draws its own numbers."""

    def forward(self, inputs, targets, mode='tensor'):
        return super().forward(inputs + torch.rand(()), targets, mode)


class Poison(Hook):
    """Spoils the weights of the first rank only, after its last step."""

    heard = False

    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter == 3 and runner.rank == 0:
            with torch.no_grad():
                runner.model.module.net.head.bias[0] = NAN

    def after_poisoned(self, runner, culprits):
        self.heard = culprits[0].name


def train(work_dir, *hooks, **kwargs):
    runner = toy_runner(
        work_dir,
        max_iters=4,
        hooks=hooks,
        launcher='pytorch',
        # mmengine itself would ask for a GPU.
        model=MMDistributedDataParallel(Noisy()),
        train_cfg=dict(type='mmstable.SafeIterBasedTrainLoop', max_iters=4),
        randomness=dict(seed=0, diff_rank_seed=True),
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook', interval=2, by_epoch=False
            )
        ),
        **kwargs,
    )
    runner.train()
    return runner


def resume_and_poison(rank, folder):
    whole = train(folder / 'whole')
    end = torch.get_rng_state()
    start = str(folder / 'whole/iter_2.pth')
    rest = train(folder / 'rest', load_from=start, resume=True)
    assert_same(weights(rest.model), weights(whole.model))
    assert torch.equal(torch.get_rng_state(), end)

    saved = read_saved(start)['mmstable']['SafeCheckpointHook']['rng']
    assert sorted(saved) == [0, 1]
    assert not torch.equal(saved[0]['torch'], saved[1]['torch'])

    poison = Poison()
    train(folder / 'poisoned', poison)
    assert poison.heard == 'state_dict.net.head.bias'
    assert not (folder / 'poisoned/iter_4.pth').exists()


def test_each_rank_goes_on_with_its_own_numbers(tmp_path):
    run_ranks(resume_and_poison, tmp_path)
