"""Workers of mmengine's own loops leave signals to the main process, too."""

from __future__ import annotations

import os
import random
import subprocess
from multiprocessing import active_children

import numpy as np
import pytest
import torch
from mmengine.hooks import Hook

from mmstable.errors import StoppedBySignal
from tests.toys import ToyData, assert_same, toy_runner, weights

HOOK = dict(type='mmstable.EmergencyCheckpointHook')
LOOPS = {
    'IterBasedTrainLoop': dict(max_iters=6),
    'EpochBasedTrainLoop': dict(max_epochs=1),
}


class NoisyData(ToyData):
    """Samples with noise of all generators of a worker."""

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        noise = random.random() + np.random.rand() + float(torch.rand(()))
        return dict(sample, inputs=sample['inputs'] + noise)


class SignalToWorkers(Hook):
    """Send a signal to all of them, and to the main process at last."""

    def before_train(self, runner):
        self._others = set(active_children())

    def after_train_iter(self, runner, batch_idx, *args, **kwargs):
        if runner.iter + 1 != 3:
            return
        workers = set(active_children()) - self._others
        assert len(workers) == 2
        # By somebody else: workers obey their parent.
        pids = [*(worker.pid for worker in workers), os.getpid()]
        subprocess.run(['kill', '-TERM', *map(str, pids)], check=True)
        for worker in workers:
            worker.join(0.5)
            assert worker.is_alive()


def runner_with(folder, *hooks, loop='IterBasedTrainLoop', **settings):
    sampler = 'InfiniteSampler'
    if loop != 'IterBasedTrainLoop':
        sampler = 'DefaultSampler'
    loader = dict(
        batch_size=2,
        num_workers=2,
        dataset=NoisyData(),
        sampler=dict(type=sampler, shuffle=True),
        collate_fn=dict(type='default_collate'),
        **settings,
    )
    return toy_runner(
        folder,
        train_dataloader=loader,
        train_cfg=dict(type=loop, **LOOPS[loop]),
        hooks=hooks,
        randomness=dict(seed=3),
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook', by_epoch=False, interval=9
            ),
        ),
    )


@pytest.mark.parametrize('loop', LOOPS)
def test_a_signal_to_the_group_stops_stock_loops_in_good_order(tmp_path, loop):
    runner = runner_with(tmp_path, HOOK, SignalToWorkers(), loop=loop)
    with pytest.raises(StoppedBySignal):
        runner.train()
    assert (tmp_path / 'emergency_iter_3.pth').exists()


@pytest.mark.parametrize('persistent', [False, True])
@pytest.mark.soak
def test_the_hook_changes_neither_data_nor_random_numbers(
    tmp_path, persistent
):
    ends = []
    for name, hooks in (('with', [HOOK]), ('without', [])):
        runner = runner_with(
            tmp_path / name, *hooks, persistent_workers=persistent
        )
        runner.train()
        ends.append((weights(runner.model), torch.get_rng_state()))
    assert_same(*ends)
