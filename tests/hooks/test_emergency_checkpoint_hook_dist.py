"""A signal to one of two ranks stops both, together."""

from __future__ import annotations

import os
import signal

import pytest
from mmengine.hooks import Hook
from mmengine.model import MMDistributedDataParallel

from mmstable.errors import StoppedBySignal
from tests.ranks import run_ranks
from tests.toys import ToyModel, toy_runner

pytestmark = pytest.mark.dist


class SignalOneRank(Hook):
    def after_train_iter(self, runner, *args, **kwargs):
        if runner.rank == 1 and runner.iter + 1 == 3:
            os.kill(os.getpid(), signal.SIGTERM)


def train(rank, folder):
    runner = toy_runner(
        folder,
        hooks=(
            SignalOneRank(),
            dict(type='mmstable.EmergencyCheckpointHook', interval=5),
        ),
        launcher='pytorch',
        model=MMDistributedDataParallel(ToyModel()),
        train_cfg=dict(type='mmstable.SafeIterBasedTrainLoop', max_iters=20),
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook',
                interval=100,
                by_epoch=False,
            )
        ),
    )
    with pytest.raises(StoppedBySignal, match='SIGTERM|another rank') as info:
        runner.train()
    assert info.value.exit_code == 143
    # The first common look after the signal.
    assert runner.iter == 4
    assert (folder / 'emergency_iter_5.pth').is_file()


def test_all_ranks_stop_at_the_same_iteration(tmp_path):
    run_ranks(train, tmp_path)
