"""What a resume table calls exact is exact; what is not, it says."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.dataset import DefaultSampler
from mmengine.registry import DATASETS
from torch import Generator
from torch.utils.data import BatchSampler, DataLoader, Sampler

from mmstable.state.rng import read_generator, write_generator
from tests.loops.runs import (
    Diary,
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
from tests.loops.test_exact_resume import check, compare, default, infinite
from tests.toys import assert_same, weights

LASTING = dict(num_workers=2, persistent_workers=True)


def quiet(made: DataLoader) -> DataLoader:
    made.dataset.noise = False
    return made


def shuffled(**kwargs: Any) -> DataLoader:
    return loader(Numbered(), shuffle=True, **kwargs)


@pytest.mark.parametrize('make', [shuffled, default])
@pytest.mark.parametrize(
    ('loop', 'cuts'),
    [(iter_loop(), (2, 4, 7)), (epoch_loop(), (2, 4, 7))],
    ids=['iterations', 'epochs'],
)
def test_workers_that_persist(tmp_path, make, loop, cuts):
    check(tmp_path, lambda: quiet(make(**LASTING)), loop, cuts)


@pytest.mark.parametrize('make', [shuffled, default])
def test_workers_that_persist_at_the_end_of_an_epoch(tmp_path, make):
    def run(folder, **kwargs):
        return train(
            tmp_path / folder,
            quiet(make(**LASTING)),
            epoch_loop(),
            by_epoch=True,
            **kwargs,
        )

    whole = run('whole')
    for epoch in (1, 2):
        path = str(tmp_path / 'whole' / f'epoch_{epoch}.pth')
        rest = run(f'rest{epoch}', load_from=path, resume=True)
        compare(whole, rest, epoch * 4)


@pytest.mark.parametrize(
    ('make', 'loop', 'cuts'),
    [
        (infinite, iter_loop(6), (3,)),
        (default, iter_loop(), (5, 8)),
        (shuffled, epoch_loop(), (2, 6)),
    ],
)
def test_replay_with_workers_that_persist(tmp_path, make, loop, cuts):
    check(tmp_path, lambda: make(**LASTING), {**loop, 'replay': True}, cuts)


def test_replay_without_a_seed(tmp_path):
    if 'Numbered' not in DATASETS:
        DATASETS.register_module(module=Numbered)
    made = dict(
        batch_size=3,
        num_workers=2,
        dataset=dict(type='Numbered'),
        sampler=dict(type='DefaultSampler', shuffle=True),
        collate_fn=dict(type='default_collate'),
    )
    unseeded = dict(randomness=dict(seed=None))
    loop = epoch_loop(2, replay=True)
    whole = train(tmp_path / 'whole', made, loop, **unseeded)
    for cut in (2, 4, 6):
        path = tmp_path / 'whole' / f'iter_{cut}.pth'
        rest = resume(tmp_path / f'rest{cut}', path, made, loop, **unseeded)
        compare(whole, rest, cut)


class OwnDraws(Sampler):
    """Its order comes from a generator in an attribute of any name."""

    def __init__(self, kind: str) -> None:
        self.dice = {
            'torch': lambda: Generator().manual_seed(3),
            'python': lambda: random.Random(3),
            'numpy': lambda: np.random.RandomState(3),
            'numpy, new': lambda: np.random.default_rng(3),
        }[kind]()

    def __len__(self) -> int:
        return 10

    def __iter__(self):
        if isinstance(self.dice, Generator):
            order = torch.randperm(10, generator=self.dice).tolist()
        else:
            order = list(range(10))
            self.dice.shuffle(order)
        return iter(order)


KINDS = ('torch', 'python', 'numpy', 'numpy, new')


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('loop', [iter_loop(), epoch_loop()])
def test_samplers_with_a_generator_of_their_own(tmp_path, kind, loop):
    def make():
        return loader(Numbered(), sampler=OwnDraws(kind))

    check(tmp_path, make, loop, (2, 4, 6, 8))


class Mixed(BatchSampler):
    """Shuffles batches, not samples."""

    def __init__(self, sampler: Sampler) -> None:
        super().__init__(sampler, 3, False)
        self.rng = np.random.default_rng(5)

    def __iter__(self):
        batches = list(super().__iter__())
        self.rng.shuffle(batches)
        return iter(batches)


def test_a_batch_sampler_with_a_generator_of_its_own(tmp_path):
    def make():
        data = Numbered()
        batches = Mixed(DefaultSampler(data, seed=5))
        return DataLoader(data, batch_sampler=batches)

    check(tmp_path, make, epoch_loop(), (2, 4, 6))


@pytest.mark.parametrize(
    'make',
    [
        lambda: Generator().manual_seed(1),
        lambda: random.Random(1),
        lambda: np.random.RandomState(1),
        *(
            lambda kind=kind: np.random.Generator(kind(1))
            for kind in (
                np.random.MT19937,
                np.random.PCG64,
                np.random.Philox,
                np.random.SFC64,
            )
        ),
    ],
)
def test_states_of_generators(make):
    def draw(generator):
        if isinstance(generator, Generator):
            return torch.rand(9, generator=generator).tolist()
        return [generator.random() for _ in range(9)]

    first, second = make(), make()
    draw(first)
    saved = read_generator(first)
    assert saved.dtype is torch.uint8
    expected = draw(first)
    assert draw(second) != expected
    write_generator(second, saved)
    assert draw(second) == expected


SAFE = dict(
    checkpoint=dict(
        type='mmstable.SafeCheckpointHook', interval=1, by_epoch=False
    ),
    logger=dict(type='LoggerHook', interval=1),
)


class Quiet(Diary):
    """Leaves it to the hook to carry the state."""

    def before_save_checkpoint(self, runner, checkpoint):
        pass

    def after_load_checkpoint(self, runner, checkpoint):
        pass


def result_of(tmp_path, make, loop, cut, then=None):
    """What the table says of a resume, and both runs."""
    hooks = dict(default_hooks=SAFE)
    whole = train(tmp_path / 'whole', make(), loop, diary=Quiet(), **hooks)
    rest = resume(
        tmp_path / 'rest',
        tmp_path / 'whole' / f'iter_{cut}.pth',
        (then or make)(),
        loop,
        diary=Quiet(),
        hooks=[dict(type='mmstable.ResumeReportHook')],
        **hooks,
    )
    (line,) = [
        one for one in log_of(rest).splitlines() if one.startswith('  result')
    ]
    return line[17:], whole, rest


class Stateful(Sampler):
    """Another order in each pass, for a reason that nobody saves."""

    def __init__(self) -> None:
        self.passes = 0

    def __len__(self) -> int:
        return 10

    def __iter__(self):
        self.passes += 1
        return iter([(self.passes * i) % 10 for i in range(10)])


class Cycle(Sampler):
    """Goes on where it was, by an iterator of its own."""

    def __init__(self) -> None:
        self.source = iter(list(range(1000)))

    def __len__(self) -> int:
        return 10

    def __iter__(self):
        return (next(self.source) ** 2 // 7 % 10 for _ in range(10))


EXACT = 'exact (identical to an uninterrupted run)'
WORKERS = (
    'approximate: random numbers drawn inside workers are new; '
    'train_cfg=dict(replay=True) repeats them'
)


@pytest.mark.parametrize(
    ('make', 'loop', 'cut', 'said'),
    [
        (default, epoch_loop(), 6, EXACT),
        (infinite, iter_loop(), 6, EXACT),
        (lambda: default(num_workers=1), epoch_loop(), 6, WORKERS),
        (lambda: shuffled(num_workers=1), epoch_loop(replay=True), 6, EXACT),
        (
            lambda: loader(Numbered(), sampler=Stateful()),
            epoch_loop(),
            6,
            'approximate: Stateful.passes was 1 when this pass began, and is '
            '0 now',
        ),
        (
            lambda: loader(Numbered(), sampler=Cycle()),
            epoch_loop(),
            6,
            'approximate: Cycle.source is an iterator, which cannot be saved',
        ),
    ],
    ids=['epochs', 'iterations', 'workers', 'replay', 'stateful', 'iterator'],
)
def test_the_table_says_what_is_exact(tmp_path, make, loop, cut, said):
    found, whole, rest = result_of(tmp_path, make, loop, cut)
    assert found == said
    same = all(
        torch.equal(one, other)
        for one, other in zip(
            weights(rest.model).values(), weights(whole.model).values()
        )
    )
    assert same is (said == EXACT)


def test_an_epoch_with_larger_batches(tmp_path):
    found, _, rest = result_of(
        tmp_path,
        lambda: quiet(default(shuffle=False)),
        epoch_loop(),
        6,
        then=lambda: quiet(default(shuffle=False, batch_size=5)),
    )
    assert found == (
        'approximate: the data settings have changed: batch_size 3 -> 5'
    )
    # 6 samples of the second epoch are one batch of 5, rounded down.
    assert diary(rest).numbers[0] == [5, 6, 7, 8, 9]
    assert (rest.epoch, rest.iter) == (3, rest.max_iters)


def test_epochs_of_mmengine_repeat_what_is_done(tmp_path):
    loop = dict(by_epoch=True, max_epochs=3, val_interval=10**6)
    found, _, rest = result_of(tmp_path, default, loop, 6)
    assert found.startswith(
        "approximate: mmengine's EpochBasedTrainLoop reads its first batch"
    )
    said = (
        "mmengine's EpochBasedTrainLoop starts the epoch anew and trains on 2 "
        'batches twice; SafeEpochBasedTrainLoop does not'
    )
    assert found.endswith(said)
    assert f'this resume is approximate: {said}.' in log_of(rest)
    assert len(diary(rest).numbers) == 8


def test_a_loader_with_lasting_workers_that_was_used_before(tmp_path):
    used, loop = quiet(shuffled(**LASTING)), epoch_loop()
    whole = build(tmp_path / 'whole', used, loop)
    whole.train()
    rest = resume(
        tmp_path / 'rest', tmp_path / 'whole' / 'iter_5.pth', used, loop
    )
    assert_same(weights(rest.model), weights(whole.model))
