"""Schedules that a rollback set back end with the run."""

from __future__ import annotations

import pytest
import torch

from tests.recovery.runs import run
from tests.toys import Sabotage, ToyData

SAFE_SCHEDULES = dict(
    param_scheduler=dict(type='mmstable.SafeParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', interval=10**6),
)


def last_rates(folder, schedule, faults=(), iters=24, **kwargs):
    runner = run(
        folder,
        dict(lr_factor=1.0),
        faults,
        iters=iters,
        param_scheduler=schedule,
        default_hooks=SAFE_SCHEDULES,
        **kwargs,
    )
    assert bool(runner.diary.done) == bool(faults)
    return runner.optim_wrapper.get_lr()


@pytest.mark.parametrize('bad', [6, 14], ids=['warm-up', 'decay'])
def test_a_schedule_of_two_parts_ends_with_the_run(tmp_path, bad):
    schedule = [
        dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=10),
        dict(type='CosineAnnealingLR', by_epoch=False, begin=10, end=24),
    ]
    faults = [Sabotage(loss=[bad, bad + 1])]
    rates = last_rates(tmp_path / 'bad', schedule, faults)
    assert rates['lr'] == pytest.approx(
        last_rates(tmp_path / 'good', schedule)['lr']
    )


def test_a_schedule_by_epoch_goes_on_with_the_epoch(tmp_path):
    schedule = [dict(type='MultiStepLR', milestones=[2, 3], by_epoch=True)]

    def rates(folder, faults=()):
        data = ToyData(8)
        return last_rates(
            folder,
            schedule,
            faults,
            train_cfg=dict(by_epoch=True, max_epochs=6),
            train_dataloader=torch.utils.data.DataLoader(data, batch_size=2),
        )['lr']

    # The snapshot is of the epoch before.
    assert rates(tmp_path / 'bad', [Sabotage(loss=[9, 10])]) == pytest.approx(
        rates(tmp_path / 'good')
    )
