"""Validation comes when it should, and draws what it draws in mmengine."""

from __future__ import annotations

import pytest
import torch
from mmengine.dataset import DefaultSampler
from mmengine.hooks import EarlyStoppingHook, Hook

from tests.loops.runs import (
    ConstantScore,
    Numbered,
    diary,
    epoch_loop,
    iter_loop,
    loader,
    resume,
    train,
    validation,
)
from tests.toys import assert_same, weights

VAL_EVERY_3 = iter_loop(8, val_interval=3)
VAL_EVERY_EPOCH = epoch_loop(3, val_interval=1)


def data():
    numbered = Numbered()
    return loader(numbered, sampler=DefaultSampler(numbered, seed=5))


@pytest.mark.parametrize(
    ('loop', 'cut', 'whole', 'rest'),
    [
        (VAL_EVERY_3, 2, [3, 6, 8], [3, 6, 8]),
        # The checkpoint was saved before the validation.
        (VAL_EVERY_3, 3, [3, 6, 8], [3, 6, 8]),
        (VAL_EVERY_3, 4, [3, 6, 8], [6, 8]),
        (VAL_EVERY_3, 8, [3, 6, 8], [8]),
        (VAL_EVERY_EPOCH, 3, [4, 8, 12], [4, 8, 12]),
        (VAL_EVERY_EPOCH, 4, [4, 8, 12], [4, 8, 12]),
        (VAL_EVERY_EPOCH, 5, [4, 8, 12], [8, 12]),
        (epoch_loop(3, val_interval=1, val_begin=2), 4, [8, 12], [8, 12]),
        (
            iter_loop(8, val_interval=4, dynamic_intervals=[(5, 1)]),
            6,
            [4, 5, 6, 7, 8],
            [6, 7, 8],
        ),
    ],
)
def test_validation_after_a_resume(tmp_path, loop, cut, whole, rest):
    unbroken = train(tmp_path / 'whole', data(), loop, **validation())
    resumed = resume(
        tmp_path / 'rest',
        tmp_path / 'whole' / f'iter_{cut}.pth',
        data(),
        loop,
        **validation(),
    )
    assert diary(unbroken).validated == whole
    assert diary(resumed).validated == rest
    assert_same(weights(resumed.model), weights(unbroken.model))


def test_validation_at_the_end_of_an_epoch_is_made_up_for(tmp_path):
    keep = dict(by_epoch=True, **validation())
    whole = train(tmp_path / 'whole', data(), VAL_EVERY_EPOCH, **keep)
    checkpoint = tmp_path / 'whole' / 'epoch_2.pth'
    keep.update(validation())
    rest = resume(
        tmp_path / 'rest', checkpoint, data(), VAL_EVERY_EPOCH, **keep
    )
    assert diary(rest).validated == [8, 12]
    assert_same(weights(rest.model), weights(whole.model))


def test_no_validation_is_made_up_for_in_the_middle_of_an_epoch(tmp_path):
    less_often = {**VAL_EVERY_EPOCH, 'val_interval': 2}
    train(tmp_path / 'whole', data(), less_often, **validation())
    checkpoint = tmp_path / 'whole' / 'iter_5.pth'
    rest = resume(
        tmp_path / 'rest', checkpoint, data(), VAL_EVERY_EPOCH, **validation()
    )
    assert diary(rest).validated == [8, 12]


@pytest.mark.parametrize(
    ('loop', 'name', 'rest'),
    [
        (VAL_EVERY_3, 'iter_3.pth', [6, 8]),
        (VAL_EVERY_EPOCH, 'epoch_1.pth', [8, 12]),
    ],
    ids=['iterations', 'epochs'],
)
def test_a_checkpoint_with_the_result_does_not_ask_again(
    tmp_path, loop, name, rest
):
    by_epoch = name.startswith('epoch')
    hooks = dict(
        default_hooks=dict(
            checkpoint=dict(
                type='CheckpointHook',
                interval=1 if by_epoch else 3,
                by_epoch=by_epoch,
                save_best='score',
                rule='greater',
            )
        )
    )
    whole = train(tmp_path / 'whole', data(), loop, **hooks, **validation())
    resumed = resume(
        tmp_path / 'rest',
        tmp_path / 'whole' / name,
        data(),
        loop,
        **validation(),
    )
    assert diary(resumed).validated == rest
    assert_same(weights(resumed.model), weights(whole.model))


class SaveWhileValidating(Hook):
    def after_val_iter(self, runner, batch_idx, data_batch, outputs):
        meta = runner.train_loop.resume_meta()
        name = f'val_{runner.iter}.pth'
        runner.save_checkpoint(runner.work_dir, name, meta=meta)


@pytest.mark.parametrize(
    ('loop', 'cut'),
    [(VAL_EVERY_3, 3), (VAL_EVERY_EPOCH, 4), (VAL_EVERY_EPOCH, 12)],
)
def test_a_checkpoint_from_within_a_validation(tmp_path, loop, cut):
    whole = train(
        tmp_path / 'whole',
        data(),
        loop,
        hooks=[SaveWhileValidating()],
        **validation(),
    )
    checkpoint = tmp_path / 'whole' / f'val_{cut}.pth'
    rest = resume(tmp_path / 'rest', checkpoint, data(), loop, **validation())
    assert diary(rest).validated[0] == cut
    assert diary(rest).numbers == diary(whole).numbers[cut:]
    assert_same(weights(rest.model), weights(whole.model))

    # And once more from the validation that was made up for.
    again = resume(
        tmp_path / 'again',
        checkpoint,
        data(),
        loop,
        hooks=[SaveWhileValidating()],
        **validation(),
    )
    assert_same(weights(again.model), weights(whole.model))
    last = resume(
        tmp_path / 'last',
        tmp_path / 'again' / f'val_{cut}.pth',
        data(),
        loop,
        **validation(),
    )
    assert_same(weights(last.model), weights(whole.model))


@pytest.mark.parametrize('loop', [VAL_EVERY_3, VAL_EVERY_EPOCH])
def test_training_goes_on_as_in_mmengine(tmp_path, loop):
    ours = train(tmp_path / 'ours', data(), loop, **validation())
    kind = loop['type'].replace('mmstable.Safe', '')
    stock = train(
        tmp_path / 'stock',
        data(),
        {**loop, 'type': kind},
        stock=True,
        **validation(),
    )
    assert_same(weights(ours.model), weights(stock.model))


@pytest.mark.parametrize(
    'cut', [4, *(pytest.param(n, marks=pytest.mark.soak) for n in (2, 3, 6))]
)
def test_validation_workers_that_stay_draw_their_seed_once(tmp_path, cut):
    def run(start, folder, *args):
        settings = validation()
        settings['val_dataloader'] = loader(
            Numbered(4), num_workers=1, persistent_workers=True
        )
        return start(folder, *args, data(), VAL_EVERY_3, **settings)

    whole = run(train, tmp_path / 'whole')
    checkpoint = tmp_path / 'whole' / f'iter_{cut}.pth'
    rest = run(resume, tmp_path / 'rest', checkpoint)
    assert_same(weights(rest.model), weights(whole.model))


@pytest.mark.parametrize(
    ('loop', 'stopped'), [(VAL_EVERY_3, 6), (VAL_EVERY_EPOCH, 8)]
)
def test_early_stopping_works(tmp_path, loop, stopped):
    stop = EarlyStoppingHook(monitor='score', rule='greater', patience=1)
    runner = train(
        tmp_path, data(), loop, hooks=[stop], **validation(ConstantScore)
    )
    assert runner.iter == stopped
    assert len(diary(runner).numbers) == stopped
    assert torch.isfinite(weights(runner.model)['net.head.weight']).all()
