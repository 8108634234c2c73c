"""Batches that cannot make a step are refused, with the sum spelled out."""

from __future__ import annotations

import re

import pytest
import torch
from mmengine.dataset import InfiniteSampler
from mmengine.optim import OptimWrapperDict
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler

from mmstable import SafeOptimWrapper
from mmstable.errors import ConfigError
from mmstable.loops.checks import check_batch_size, check_data
from tests.hooks.test_safe_ema_hook import TwoParts
from tests.loops.runs import (
    Diary,
    Numbered,
    build,
    epoch_loop,
    iter_loop,
    loader,
    log_of,
    train,
)
from tests.toys import ToyData

LOOPS = {'iter': iter_loop, 'epoch': epoch_loop}


class Silent(Diary):
    """For data without numbers."""

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        pass


def wrapper_of(accumulate):
    return dict(
        type='mmstable.SafeOptimWrapper',
        optimizer=dict(type='SGD', lr=0.1),
        accumulative_counts=accumulate,
    )


def settings(**kwargs):
    """A loader as a config has it."""
    return dict(
        dataset=Numbered(4),
        sampler=dict(type='DefaultSampler', shuffle=False),
        collate_fn=dict(type='default_collate'),
        num_workers=0,
        **kwargs,
    )


@pytest.mark.parametrize('loop', LOOPS)
@pytest.mark.parametrize(
    ('size', 'message'),
    [
        (4 // 8, 'at least 1, got 0. A division of whole numbers gives 0'),
        (-2, 'at least 1, got -2.'),
        (4 / 2, 'at least 1, got 2.0. Whole numbers are divided by `//`'),
        ('4', "at least 1, got '4'."),
        (True, 'at least 1, got True.'),
    ],
)
def test_a_batch_has_a_size(tmp_path, loop, size, message):
    message = f'train_dataloader.batch_size must be an int of {message}'
    with pytest.raises(ConfigError, match=re.escape(message)):
        train(tmp_path, settings(batch_size=size), LOOPS[loop]())


@pytest.mark.parametrize(
    'given', [None, {}, dict(batch_size=None), dict(batch_size=1), loader([1])]
)
def test_what_torch_takes_is_let_through(given):
    check_batch_size(given)


@pytest.mark.parametrize('loop', LOOPS)
def test_data_that_fills_no_batch(tmp_path, loop):
    with pytest.raises(
        ConfigError,
        match=re.escape(
            'train_dataloader: an epoch has 0 iterations. 3 samples / 1 rank '
            '= 3 for each, 3 // batch_size 4 = 0 full batches, and '
            'drop_last=True leaves out others. Use batch_size <= 3, '
            'drop_last=False, or more data.'
        ),
    ):
        build(
            tmp_path, loader(Numbered(3), 4, drop_last=True), LOOPS[loop]()
        ).train()


def test_ranks_share_the_data(tmp_path, monkeypatch):
    monkeypatch.setattr(
        'mmengine.dataset.sampler.get_dist_info', lambda: (0, 2)
    )
    monkeypatch.setattr(
        'mmstable.state.data_position.get_world_size', lambda: 2
    )
    with pytest.raises(
        ConfigError,
        match='4 samples / 2 ranks = 2 for each, 2 // batch_size 3 = 0 full',
    ):
        train(tmp_path, settings(batch_size=3, drop_last=True), epoch_loop())


def test_a_sampler_that_takes_nothing(tmp_path):
    with pytest.raises(
        ConfigError,
        match='SubsetRandomSampler takes none of the 4 samples',
    ):
        train(
            tmp_path,
            loader(Numbered(4), sampler=SubsetRandomSampler([])),
            epoch_loop(),
        )


@pytest.mark.parametrize('loop', LOOPS)
@pytest.mark.parametrize('endless', [False, True])
def test_no_data_at_all(tmp_path, loop, endless):
    # An endless sampler would look for a sample for ever.
    data = Numbered(0)
    sampler = InfiniteSampler(data) if endless else range(0)
    with pytest.raises(
        ConfigError, match=r'the data set is empty \(0 samples\)'
    ):
        build(tmp_path, loader(data, sampler=sampler), LOOPS[loop]()).train()


def test_an_endless_sampler_fills_any_batch(tmp_path):
    data = Numbered(3)
    batches = loader(
        data, 4, sampler=InfiniteSampler(data, seed=0), drop_last=True
    )
    runner = train(tmp_path, batches, iter_loop(2))
    assert runner.iter == 2


def test_data_without_a_length_is_let_through():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(4))

    check_data(DataLoader(Stream(), batch_size=2))


@pytest.mark.parametrize(
    ('loop', 'counts', 'iterations'),
    [(iter_loop(5), 6, 5), (epoch_loop(2), 9, 8)],
)
def test_a_step_longer_than_the_run(tmp_path, loop, counts, iterations):
    """It is made at the end, of what there is, as mmengine makes it."""
    runner = train(
        tmp_path,
        loader(Numbered(10)),
        loop,
        optim_wrapper=wrapper_of(counts),
    )
    assert runner.optim_wrapper.applied_steps == 1
    assert (
        f'optim_wrapper.accumulative_counts={counts}: a step takes {counts} '
        f'iterations, but the whole run has {iterations}, so that it makes '
        'one step, at its end.'
    ) in log_of(runner)


@pytest.mark.parametrize(
    ('counts', 'end'),
    [(5, '5 steps.'), (7, '4 steps.')],
)
def test_what_makes_a_step_is_said(tmp_path, counts, end):
    runner = train(
        tmp_path,
        loader(Numbered(10)),
        iter_loop(25),
        optim_wrapper=wrapper_of(counts),
    )
    assert (
        f'optim_wrapper: 1 step = {counts} iterations (accumulative_counts) x '
        f'1 rank x batch_size 3 = {3 * counts} samples; 25 iterations = {end}'
    ) in log_of(runner)


def test_without_accumulation_nothing_is_said(tmp_path):
    runner = train(tmp_path, loader(Numbered(4)), iter_loop(2))
    assert '1 step =' not in log_of(runner)


def test_several_optimizers_are_told_apart(tmp_path):
    def run(counts, max_iters):
        model = TwoParts()
        parts = dict(head=model.net.head, backbone=model.net.backbone)
        return train(
            tmp_path / str(counts),
            loader(ToyData()),
            iter_loop(max_iters),
            model=model,
            optim_wrapper=OptimWrapperDict(
                **{
                    name: SafeOptimWrapper(
                        torch.optim.SGD(part.parameters(), lr=0.1),
                        counts if name == 'head' else 1,
                    )
                    for name, part in parts.items()
                }
            ),
            diary=Silent(),
        )

    message = (
        'optim_wrapper.head.accumulative_counts=4: a step takes 4 iterations, '
        'but the whole run has 3: 3 // 4 = 0 full steps. Use '
        'accumulative_counts <= 3, or train longer'
    )
    with pytest.raises(ConfigError, match=re.escape(message)):
        run(4, max_iters=3)
    # Nothing has happened that would be worth saving.
    assert not list(tmp_path.glob('**/*.pth'))
    log = log_of(run(2, max_iters=3))
    assert 'optim_wrapper.head: 1 step = 2 iterations' in log

    assert '3 iterations = 1 step.' in log
    assert 'optim_wrapper.backbone: 1 step' not in log
