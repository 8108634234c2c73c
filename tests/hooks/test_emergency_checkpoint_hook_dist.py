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
    """A signal to save, and later one to stop, to rank 1 only."""

    def after_train_iter(self, runner, *args, **kwargs):
        if runner.rank == 1 and runner.iter + 1 in (5, 13):
            number = signal.SIGUSR1 if runner.iter < 10 else signal.SIGTERM
            os.kill(os.getpid(), number)


def train(rank, folder):
    runner = toy_runner(
        folder,
        hooks=(
            SignalOneRank(),
            dict(type='mmstable.EmergencyCheckpointHook'),
        ),
        launcher='pytorch',
        model=MMDistributedDataParallel(ToyModel()),
        optim_wrapper=dict(
            type='mmstable.SafeOptimWrapper',
            accumulative_counts=7,
            optimizer=dict(type='SGD', lr=0.1),
        ),
        train_cfg=dict(type='mmstable.SafeIterBasedTrainLoop', max_iters=80),
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook',
                interval=100,
                by_epoch=False,
            )
        ),
    )
    with pytest.raises(StoppedBySignal, match='SIGTERM') as info:
        runner.train()
    assert info.value.exit_code == 143
    # The window was not closed on any rank when the signal came.
    assert runner.iter == 13
    assert (folder / 'emergency_iter_7.pth').is_file()
    assert (folder / 'emergency_iter_14.pth').is_file()


def test_all_ranks_obey_after_the_same_iteration(tmp_path):
    run_ranks(train, tmp_path)


def train_apart(rank, folder):
    # Nothing is shared, so the ranks have to ask each other.
    runner = toy_runner(
        folder / str(rank),
        hooks=(
            SignalOneRank(),
            dict(type='mmstable.EmergencyCheckpointHook', interval=5),
        ),
        model=ToyModel(),
        train_cfg=dict(type='mmstable.SafeIterBasedTrainLoop', max_iters=80),
    )
    with pytest.raises(StoppedBySignal, match='SIGTERM'):
        runner.train()
    assert runner.iter == 14


@pytest.mark.soak
def test_ranks_without_common_gradients(tmp_path):
    run_ranks(train_apart, tmp_path)
