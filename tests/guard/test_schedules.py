"""Schedules that a rollback set back end with the run."""

from __future__ import annotations

import pytest
from mmengine.evaluator import Evaluator
from torch.utils.data import DataLoader

from tests.guard.runs import PLAIN, Blow, Predicting, run
from tests.loops.runs import ConstantScore
from tests.toys import ToyData

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
    faults = [Blow([bad])]
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
            train_dataloader=DataLoader(data, batch_size=2),
        )['lr']

    # The snapshot is of the epoch before.
    assert rates(tmp_path / 'bad', [Blow([9])]) == pytest.approx(
        rates(tmp_path / 'good')
    )


def plateau_run(folder, faults=(), guard=None, extra=()):
    data = ToyData(8)
    return run(
        folder,
        dict(lr_factor=1.0, **(guard or {})),
        faults,
        model=Predicting(),
        wrapper=dict(PLAIN, optimizer=dict(type='AdamW', lr=0.1)),
        train_cfg=dict(by_epoch=True, max_epochs=5),
        train_dataloader=DataLoader(data, batch_size=2),
        val_dataloader=DataLoader(data, batch_size=2),
        val_evaluator=Evaluator(ConstantScore()),
        val_cfg=dict(),
        param_scheduler=[
            dict(
                type='ReduceOnPlateauLR',
                monitor='score',
                rule='greater',
                patience=0,
                factor=0.5,
            ),
            *extra,
        ],
        default_hooks=dict(
            param_scheduler=dict(type='mmstable.SafeParamSchedulerHook'),
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook', by_epoch=False, interval=7
            ),
        ),
    )


WARMUP = dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=14)
MOMENTUM = dict(type='LinearMomentum', by_epoch=False, end=18)


@pytest.mark.parametrize('extra', [(), (WARMUP, MOMENTUM)])
@pytest.mark.parametrize('memory', [8.0, 0.0], ids=['memory', 'checkpoint'])
def test_what_validations_have_decided_is_not_taken_back(
    tmp_path, memory, extra
):
    """The state is of iteration 7 or 8, the rate was halved after 8 and 12."""
    good = plateau_run(tmp_path / 'good', extra=extra)
    bad = plateau_run(
        tmp_path / 'bad',
        [Blow([13])],
        dict(max_snapshot_memory=memory, snapshot_interval=8),
        extra,
    )
    (done,) = bad.diary.done
    assert done.restored == (8 if memory else 7)
    assert good.diary.lr[-1] < good.diary.lr[4]
    assert bad.diary.lr[-1] == pytest.approx(good.diary.lr[-1])
    momentum = good.optim_wrapper.get_momentum()['momentum']
    assert bad.optim_wrapper.get_momentum()['momentum'] == pytest.approx(
        momentum
    )
