"""The average of a run with a skipped step is that of a run without it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from mmengine.dataset import InfiniteSampler
from mmengine.hooks import EMAHook, Hook
from mmengine.optim import OptimWrapperDict
from torch import nn
from torch.utils.data import DataLoader, Subset

from mmstable import SafeOptimWrapper
from mmstable.hooks import SafeEMAHook
from tests.toys import (
    NAN,
    Sabotage,
    ToyData,
    ToyModel,
    assert_same,
    toy_runner,
    weights,
)

GRAD = 'net.head.weight'
SAVES = dict(
    checkpoint=dict(type='CheckpointHook', interval=4, by_epoch=False)
)


class NormModel(ToyModel):
    """With buffers that a forward pass changes."""

    def __init__(self) -> None:
        super().__init__()
        self.net.norm = nn.BatchNorm1d(8)


def wrapper_of(accumulate=1, kind='mmstable.SafeOptimWrapper'):
    return dict(
        type=kind,
        optimizer=dict(type='SGD', lr=0.1, momentum=0.9),
        accumulative_counts=accumulate,
    )


def data(without=()):
    """The batches of an unshuffled run, without some of them."""
    left = [i for i in range(16) if i // 2 + 1 not in without]
    subset = Subset(ToyData(), left)
    return DataLoader(
        subset, batch_size=2, sampler=InfiniteSampler(subset, shuffle=False)
    )


def train(work_dir, hook, optim_wrapper=None, max_iters=8, **kwargs):
    settings = dict(hook) if isinstance(hook, dict) else dict(type=hook)
    ema = settings.pop('type')(momentum=0.2, **settings)
    hooks = [*kwargs.pop('hooks', ()), ema]
    runner = toy_runner(
        work_dir,
        optim_wrapper or wrapper_of(),
        max_iters,
        hooks,
        model=kwargs.pop('model', None) or NormModel(),
        **kwargs,
    )
    runner.train()
    return runner


def average(runner):
    hook = next(h for h in runner.hooks if isinstance(h, EMAHook))
    return weights(hook.ema_model)


class Averages(Hook):
    """What the average is after every iteration."""

    priority = 'LOWEST'

    def __init__(self) -> None:
        self.seen = []

    def after_train_iter(self, runner, *args, **kwargs):
        self.seen.append(average(runner))


@pytest.mark.parametrize(
    'settings', [{}, dict(update_buffers=True), dict(interval=2)], ids=str
)
@pytest.mark.parametrize(
    ('accumulate', 'bad'), [(1, [3]), (2, [3, 4]), (1, [1, 2])]
)
def test_a_skipped_step_leaves_no_trace(tmp_path, accumulate, bad, settings):
    hook = dict(type=SafeEMAHook, **settings)
    spoiled = Sabotage(grads={bad[-1]: (GRAD, NAN), bad[0]: (GRAD, NAN)})
    wrapper = wrapper_of(accumulate)
    # LayerNorm: the batch leaves no trace in the model either.
    faulty = train(
        tmp_path / 'a', hook, wrapper, hooks=[spoiled], model=ToyModel()
    )
    without = train(
        tmp_path / 'b',
        hook,
        wrapper,
        max_iters=8 - len(bad),
        train_dataloader=data(without=bad),
        model=ToyModel(),
    )
    assert_same(weights(faulty.model), weights(without.model))
    assert average(faulty)['steps'] == 8 - len(bad)
    assert_same(average(faulty), average(without))


def test_the_hook_of_mmengine_fails_that(tmp_path):
    spoiled = Sabotage(grads={3: (GRAD, NAN)})
    faulty = train(tmp_path / 'a', EMAHook, hooks=[spoiled])
    without = train(
        tmp_path / 'b',
        EMAHook,
        max_iters=7,
        train_dataloader=data(without=[3]),
    )
    assert average(faulty)['steps'] != average(without)['steps']
    name = f'module.{GRAD}'
    assert not torch.equal(average(faulty)[name], average(without)[name])


@pytest.mark.parametrize('update_buffers', [False, True])
@pytest.mark.parametrize('accumulate', [1, 2])
def test_its_buffers_stay_finite(tmp_path, accumulate, update_buffers):
    runner = train(
        tmp_path,
        dict(type=SafeEMAHook, update_buffers=update_buffers),
        wrapper_of(accumulate),
        max_iters=4,
        # The last window is lost.
        hooks=[Sabotage(inputs=range(5 - accumulate, 5))],
    )
    assert runner.optim_wrapper.skipped_steps == 1
    assert all(value.isfinite().all() for value in average(runner).values())


@pytest.mark.parametrize(
    'settings',
    [
        {},
        dict(begin_iter=5),
        dict(interval=3, update_buffers=True),
        dict(ema_type='StochasticWeightAverage', begin_iter=4),
    ],
    ids=str,
)
@pytest.mark.parametrize('accumulate', [1, 3])
def test_a_healthy_run_is_that_of_mmengine(tmp_path, accumulate, settings):
    seen = []
    for kind in (EMAHook, SafeEMAHook):
        if 'ema_type' in settings:
            hook = kind(**settings)
        else:
            hook = kind(momentum=0.2, **settings)
        averages = Averages()
        toy_runner(
            tmp_path / kind.__name__,
            wrapper_of(accumulate),
            8,
            [hook, averages],
            model=NormModel(),
        ).train()
        seen.append(averages.seen)
    assert len(seen[0]) == 8
    assert_same(*seen)


def test_begin_epoch_is_that_of_mmengine(tmp_path):
    ends = []
    for kind in (EMAHook, SafeEMAHook):
        runner = train(
            tmp_path / kind.__name__,
            dict(type=kind, begin_epoch=2),
            train_dataloader=DataLoader(ToyData(), batch_size=4),
            train_cfg=dict(by_epoch=True, max_epochs=3),
        )
        ends.append(average(runner))
    assert_same(*ends)
    assert ends[0]['steps'] == 8


def test_before_it_begins_a_skipped_step_changes_nothing(tmp_path):
    averages = Averages()
    spoiled = Sabotage(inputs=[2])
    hook = dict(type=SafeEMAHook, begin_iter=3)
    train(tmp_path, hook, max_iters=3, hooks=[spoiled, averages])
    assert_same(averages.seen[1], averages.seen[0])


@pytest.mark.parametrize(
    ('first', 'second'),
    [
        (SafeEMAHook, SafeEMAHook),
        (EMAHook, SafeEMAHook),
        (SafeEMAHook, EMAHook),
    ],
)
@pytest.mark.parametrize('accumulate', [1, 2])
def test_checkpoints_go_both_ways(tmp_path, first, second, accumulate):
    wrapper = wrapper_of(accumulate)
    # Only the safe hook obeys, so a fault would make a difference.
    grads = {6: (GRAD, NAN)} if first is second else {}

    def run(name, kind, **kwargs):
        return train(
            tmp_path / name,
            kind,
            wrapper,
            hooks=[Sabotage(grads=grads)],
            **kwargs,
        )

    whole = run('whole', first, default_hooks=SAVES)
    rest = run(
        'rest',
        second,
        load_from=str(tmp_path / 'whole' / 'iter_4.pth'),
        resume=True,
    )
    assert_same(average(rest), average(whole))
    assert_same(weights(rest.model), weights(whole.model))


def test_stock_wrappers_are_not_obeyed_and_that_is_said(tmp_path):
    wrapper = wrapper_of(kind='OptimWrapper')
    ours = train(tmp_path / 'ours', SafeEMAHook, wrapper)
    stock = train(tmp_path / 'stock', EMAHook, wrapper)
    assert_same(average(ours), average(stock))
    log = Path(ours.logger.log_file).read_text()
    assert log.count('SafeEMAHook: the optimizer wrapper does not report') == 1


class TwoParts(ToyModel):
    """Trained by one optimizer for each part."""

    def train_step(self, data, optim_wrapper):
        data = self.data_preprocessor(data, True)
        loss = self(**data, mode='loss')['loss']
        for wrapper in optim_wrapper.values():
            wrapper.zero_grad()
        loss.backward()
        for wrapper in optim_wrapper.values():
            wrapper.step()
        return dict(loss=loss)


def test_one_of_several_optimizers_is_enough(tmp_path):
    model, averages = TwoParts(), Averages()
    wrappers = OptimWrapperDict(
        **{
            name: SafeOptimWrapper(torch.optim.SGD(part.parameters(), lr=0.1))
            for name, part in model.net.named_children()
        }
    )
    spoiled = Sabotage(grads={3: (GRAD, NAN)})
    train(
        tmp_path,
        SafeEMAHook,
        wrappers,
        max_iters=4,
        model=model,
        hooks=[spoiled, averages],
    )
    assert [int(one['steps']) for one in averages.seen] == [1, 2, 2, 3]
    assert_same(averages.seen[1], averages.seen[2])


def test_a_window_can_be_forgotten(tmp_path):
    averages = Averages()

    class Rollback(Hook):
        priority = 'ABOVE_NORMAL'

        def after_train_iter(self, runner, *args, **kwargs):
            hook = next(h for h in runner.hooks if isinstance(h, SafeEMAHook))
            if runner.iter + 1 == 4:
                hook.ema_model.load_state_dict(averages.seen[0])
                hook.forget_window()

    train(
        tmp_path,
        SafeEMAHook,
        wrapper_of(2),
        max_iters=4,
        hooks=[Sabotage(grads={4: (GRAD, NAN)}), Rollback(), averages],
    )
    assert_same(averages.seen[3], averages.seen[0])
