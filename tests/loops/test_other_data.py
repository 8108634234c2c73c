"""Resuming with other data settings, and data that cannot be moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler
from mmengine.hooks import EMAHook, Hook
from mmengine.runner import Runner
from torch.utils.data import DataLoader, IterableDataset, Sampler

import mmstable.state.data_position
from mmstable.errors import CheckpointError
from tests.loops.runs import (
    Forgetful,
    Numbered,
    build,
    diary,
    epoch_loop,
    iter_loop,
    loader,
    log_of,
    resume,
    train,
)
from tests.toys import ToyModel, assert_same, weights


class ToyNumbered(ToyModel):
    """For samples with a number, and without random numbers."""

    def forward(self, inputs, targets, number, mode='tensor'):
        return super().forward(inputs, targets, mode)


def ordered(
    kind: type[Sampler] = InfiniteSampler, length: int = 10, **kwargs: Any
) -> DataLoader:
    data = Numbered(length)
    return loader(data, sampler=kind(data, shuffle=False), **kwargs)


def cut_and_resume(tmp_path, first, then, loop, cut):
    train(tmp_path / 'part', first, loop)
    return resume(
        tmp_path / 'rest', tmp_path / 'part' / f'iter_{cut}.pth', then, loop
    )


@pytest.mark.parametrize(
    ('then', 'said', 'first_batch'),
    [
        # 15 samples are done: 3 batches of 4 are in them, number 12 is next.
        (dict(batch_size=4), 'batch_size 3 -> 4', [2, 3, 4, 5]),
        (dict(length=8), 'dataset_length 10 -> 8', [7, 0, 1]),
        # 5 of 4 batches in an epoch.
        (
            dict(kind=DefaultSampler),
            'sampler InfiniteSampler -> DefaultSampler',
            [3, 4, 5],
        ),
    ],
)
def test_iterations_go_on_after_as_many_samples(
    tmp_path, then, said, first_batch
):
    rest = cut_and_resume(
        tmp_path, ordered(), ordered(**then), iter_loop(8), 5
    )
    assert diary(rest).numbers[0] == first_batch
    assert len(diary(rest).numbers) == 3
    assert log_of(rest).count(f'checkpoint was saved: {said}.') == 1


def test_more_ranks_share_the_samples(tmp_path, monkeypatch):
    first, then = ordered(), ordered()
    train(tmp_path / 'part', first, iter_loop(8))
    monkeypatch.setattr(
        mmstable.state.data_position, 'get_world_size', lambda: 2
    )
    then.sampler.world_size = 2
    rest = resume(
        tmp_path / 'rest',
        tmp_path / 'part' / 'iter_6.pth',
        then,
        iter_loop(8),
    )
    # After 18 samples this is rank 0 of 2.
    assert diary(rest).numbers[0] == [8, 0, 2]
    assert 'world_size 1 -> 2. ' in log_of(rest)


def test_an_epoch_goes_on_after_as_many_samples(tmp_path):
    rest = cut_and_resume(
        tmp_path,
        ordered(DefaultSampler),
        ordered(DefaultSampler, batch_size=2),
        epoch_loop(),
        6,
    )
    # Two batches of 3 in the second epoch are three of 2.
    assert diary(rest).numbers[:2] == [[6, 7], [8, 9]]
    assert diary(rest).iters[0] == 6
    assert (rest.epoch, rest.iter) == (3, rest.max_iters) == (3, 13)
    said = 'continues after iteration 6, and ends with iteration 13'
    assert log_of(rest).count(said) == 1


class OnlyNotes(Forgetful):
    """For a loop of mmengine's."""

    def after_load_checkpoint(self, runner, checkpoint):
        pass


class LastIteration(Hook):
    """Notes where the run is said to end."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def after_train_iter(self, runner, *args, **kwargs):
        if self.is_last_train_iter(runner):
            self.seen.append(runner.iter + 1)


def average(runner: Runner) -> dict[str, torch.Tensor]:
    hook = next(one for one in runner.hooks if isinstance(one, EMAHook))
    return weights(hook.ema_model)


def test_larger_batches_leave_averages_and_schedules_alone(tmp_path):
    """With half as many iterations the average would not have begun."""

    def go(loop, **kwargs):
        return dict(
            loop=loop,
            model=ToyNumbered(),
            hooks=[EMAHook(momentum=0.1, begin_iter=6), LastIteration()],
            param_scheduler=[
                dict(type='CosineAnnealingLR', by_epoch=False, T_max=16)
            ],
            **kwargs,
        )

    def data(batch_size):
        source = Numbered(16, noise=False)
        sampler = DefaultSampler(source, shuffle=False)
        return loader(source, batch_size, sampler=sampler)

    stock = dict(type='EpochBasedTrainLoop', max_epochs=4)
    train(tmp_path / 'a', data(4), **go(epoch_loop(4), by_epoch=True))
    path = tmp_path / 'a' / 'epoch_2.pth'
    ours = resume(tmp_path / 'b', path, data(8), **go(epoch_loop(4)))
    theirs = resume(
        tmp_path / 'c', path, data(8), **go(stock, diary=OnlyNotes())
    )
    assert diary(ours).iters == diary(theirs).iters == [8, 9, 10, 11]
    assert_same(weights(ours.model), weights(theirs.model))
    assert_same(average(ours), average(theirs))
    assert ours.optim_wrapper.get_lr() == theirs.optim_wrapper.get_lr()
    last = next(one for one in ours.hooks if isinstance(one, LastIteration))
    assert last.seen == [ours.max_iters] == [12]


def test_a_run_with_other_batches_resumes_exactly(tmp_path):
    def shorter():
        return ordered(DefaultSampler, batch_size=5)

    whole = cut_and_resume(
        tmp_path, ordered(DefaultSampler), shorter(), epoch_loop(), 6
    )
    assert diary(whole).iters == [6, 7, 8]
    rest = resume(
        tmp_path / 'again',
        tmp_path / 'rest' / 'iter_8.pth',
        shorter(),
        epoch_loop(),
    )
    assert diary(rest).numbers == diary(whole).numbers[2:]
    assert (rest.epoch, rest.iter) == (3, rest.max_iters)
    assert_same(weights(rest.model), weights(whole.model))


def test_an_epoch_never_goes_on_beyond_its_end(tmp_path):
    rest = cut_and_resume(
        tmp_path,
        ordered(DefaultSampler),
        ordered(DefaultSampler, length=3),
        epoch_loop(2),
        3,
    )
    assert diary(rest).numbers == [[0, 1, 2]]
    assert (rest.epoch, rest.iter) == (2, rest.max_iters) == (2, 4)


def test_a_stock_checkpoint_of_longer_epochs(tmp_path):
    train(tmp_path / 'part', ordered(DefaultSampler), epoch_loop(), stock=True)
    rest = resume(
        tmp_path / 'rest',
        tmp_path / 'part' / 'iter_7.pth',
        ordered(DefaultSampler, length=4),
        epoch_loop(),
        stock=True,
    )
    assert diary(rest).numbers == [[0, 1, 2], [3]] * 2


class Stream(IterableDataset):
    def __init__(self, length: int) -> None:
        self.source = Numbered(length)

    def __len__(self) -> int:
        return self.source.length

    def __iter__(self) -> Iterator[Any]:
        return (self.source[i] for i in range(self.source.length))


class ShuffledStream(Stream):
    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(self.source.length).tolist()
        return (self.source[i] for i in order)


class OwnOrder(Sampler):
    """Unknown to mmstable, and without an end."""

    def __init__(self) -> None:
        pass

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[int]:
        number = 0
        while True:
            number += 7
            yield number % 10


class ForeignLoader(DataLoader):
    """Asks nobody which samples to read."""

    def __iter__(self) -> Iterator[Any]:
        order = range(self.dataset.length // 2)
        return (
            self.collate_fn([self.dataset[i], self.dataset[-i]]) for i in order
        )


class Foreign:
    """Not even a DataLoader."""

    def __init__(self) -> None:
        self.dataset = Numbered()

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[Any]:
        return iter(ordered(DefaultSampler, drop_last=False))


@pytest.mark.parametrize(
    ('make', 'loop', 'read'),
    [
        (lambda: loader(Stream(10)), iter_loop(8), 6),
        (lambda: loader(Stream(99)), iter_loop(8), 6),
        (lambda: loader(ShuffledStream(99)), iter_loop(8), 6),
        (lambda: loader(Stream(10)), epoch_loop(), 2),
        (lambda: loader(ShuffledStream(10)), epoch_loop(), 2),
        (lambda: ForeignLoader(Numbered()), epoch_loop(), 1),
        (Foreign, iter_loop(8), 6),
        (Foreign, epoch_loop(), 2),
    ],
    ids=[
        'short',
        'long',
        'shuffled',
        'epochs',
        'shuffled epochs',
        'loader',
        'foreign',
        'foreign epochs',
    ],
)
def test_data_that_cannot_be_moved_is_read_again(tmp_path, make, loop, read):
    whole = train(tmp_path / 'whole', make(), loop)
    rest = resume(
        tmp_path / 'rest', tmp_path / 'whole' / 'iter_6.pth', make(), loop
    )
    assert diary(rest).numbers == diary(whole).numbers[6:]
    assert_same(weights(rest.model), weights(whole.model))
    log = log_of(rest)
    assert f'Reading {read} past batches again' in log
    assert f'Read {read} past batches again in ' in log


def test_an_unknown_sampler_is_moved_if_the_place_is_known(tmp_path):
    whole = train(
        tmp_path / 'whole', loader(Numbered(), sampler=OwnOrder()), iter_loop()
    )
    made = loader(Numbered(), sampler=OwnOrder())
    rest = resume(
        tmp_path / 'rest', tmp_path / 'whole' / 'iter_8.pth', made, iter_loop()
    )
    assert diary(rest).numbers == diary(whole).numbers[8:]
    assert made.dataset.reads == 9


def test_an_unknown_sampler_with_a_stock_checkpoint(tmp_path):
    whole = train(
        tmp_path / 'whole',
        loader(Numbered(), sampler=OwnOrder()),
        iter_loop(),
        stock=True,
    )
    rest = resume(
        tmp_path / 'rest',
        tmp_path / 'whole' / 'iter_8.pth',
        loader(Numbered(), sampler=OwnOrder()),
        iter_loop(),
        stock=True,
    )
    assert diary(rest).numbers == diary(whole).numbers[8:]
    assert 'Read 8 past batches again' in log_of(rest)


def test_no_batches_at_all(tmp_path):
    def single():
        return loader(
            Numbered(), None, sampler=DefaultSampler(Numbered(), seed=5)
        )

    whole = train(tmp_path / 'whole', single(), iter_loop(15))
    made = single()
    rest = resume(
        tmp_path / 'rest',
        tmp_path / 'whole' / 'iter_12.pth',
        made,
        iter_loop(15),
    )
    assert diary(rest).numbers == diary(whole).numbers[12:]
    assert made.dataset.reads == 3


def test_bad_settings_and_states(tmp_path):
    with pytest.raises(
        TypeError,
        match="SafeIterBasedTrainLoop: `replay` must be a bool, got 'yes'",
    ):
        train(tmp_path, ordered(), iter_loop(replay='yes'))
    loop = build(tmp_path, ordered(), iter_loop())
    loop = loop.build_train_loop(loop._train_loop)
    state = loop.state_dict()
    del state['seed'], state['index']
    with pytest.raises(
        CheckpointError,
        match='no run saves this: must have the keys sampler, seed, ',
    ):
        loop.load_state_dict(state)
