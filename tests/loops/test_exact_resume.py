"""A resumed run sees the same samples, and ends the same."""

from __future__ import annotations

from typing import Any

import mmengine.dataset.sampler
import pytest
from mmengine.dataset import DefaultSampler, InfiniteSampler
from torch import Generator
from torch.utils.data import BatchSampler, DataLoader

from mmstable import SafeIterBasedTrainLoop
from tests.loops.runs import (
    Diary,
    Numbered,
    build,
    diary,
    epoch_loop,
    iter_loop,
    loader,
    resume,
    train,
)
from tests.toys import assert_same, weights


def infinite(**kwargs: Any) -> DataLoader:
    shuffle = kwargs.pop('shuffle', True)
    data = Numbered()
    return loader(
        data, sampler=InfiniteSampler(data, shuffle, seed=5), **kwargs
    )


def default(**kwargs: Any) -> DataLoader:
    settings = dict(
        shuffle=kwargs.pop('shuffle', True),
        round_up=kwargs.pop('round_up', True),
    )
    data = Numbered()
    sampler = DefaultSampler(data, seed=5, **settings)
    return loader(data, sampler=sampler, **kwargs)


class Pairs(BatchSampler):
    """A batch sampler that torch does not know, of uneven batches."""

    def __iter__(self):
        indices = list(self.sampler)
        yield indices[:1]
        yield from (indices[i : i + 3] for i in range(1, 10, 3))

    def __len__(self):
        return 4


def custom() -> DataLoader:
    data = Numbered()
    batches = Pairs(DefaultSampler(data, seed=5), 3, False)
    return DataLoader(data, batch_sampler=batches)


def own_generator() -> DataLoader:
    generator = Generator().manual_seed(7)
    return loader(Numbered(), shuffle=True, generator=generator)


FINITE = {
    'shuffled': default,
    'ordered': lambda: default(shuffle=False),
    'drop_last': lambda: default(drop_last=True),
    'not rounded': lambda: default(round_up=False),
    'custom batches': custom,
    'torch': lambda: loader(Numbered(), shuffle=True),
    'own generator': own_generator,
}
ENDLESS = {
    'endless': infinite,
    'endless, ordered': lambda: infinite(shuffle=False),
    'endless, drop_last': lambda: infinite(drop_last=True),
}
# With three or four batches in an epoch: its first, a middle one, its last.
ITER_CUTS = (1, 4, 5, 9)
EPOCH_CUTS = (1, 3, 4, 5)


def compare(whole, rest, cut):
    all_of_it, what_is_left = diary(whole), diary(rest)
    assert what_is_left.numbers == all_of_it.numbers[cut:]
    assert what_is_left.batch_idx == all_of_it.batch_idx[cut:]
    assert what_is_left.iters == all_of_it.iters[cut:]
    assert_same(weights(rest.model), weights(whole.model))
    assert_same(
        rest.optim_wrapper.state_dict(), whole.optim_wrapper.state_dict()
    )
    assert (rest.iter, rest.epoch) == (whole.iter, whole.epoch)


def check(tmp_path, make, loop, cuts):
    whole = train(tmp_path / 'whole', make(), loop)
    # Otherwise nothing is left to compare.
    assert len(diary(whole).numbers) > max(cuts)
    for cut in cuts:
        checkpoint = tmp_path / 'whole' / f'iter_{cut}.pth'
        rest = resume(
            tmp_path / f'rest{cut}', checkpoint, make(), loop, interval=10**6
        )
        compare(whole, rest, cut)


@pytest.mark.parametrize('kind', [*FINITE, *ENDLESS])
def test_iterations_go_on(tmp_path, kind):
    check(tmp_path, {**FINITE, **ENDLESS}[kind], iter_loop(), ITER_CUTS)


@pytest.mark.parametrize('kind', FINITE)
def test_epochs_go_on_in_the_middle(tmp_path, kind):
    check(tmp_path, FINITE[kind], epoch_loop(), EPOCH_CUTS)


@pytest.mark.parametrize('kind', FINITE)
def test_epochs_go_on_at_their_end(tmp_path, kind):
    make = FINITE[kind]
    whole = train(tmp_path / 'whole', make(), epoch_loop(), by_epoch=True)
    for epoch in (1, 2):
        checkpoint = tmp_path / 'whole' / f'epoch_{epoch}.pth'
        rest = resume(
            tmp_path / f'rest{epoch}',
            checkpoint,
            make(),
            epoch_loop(),
            by_epoch=True,
        )
        compare(whole, rest, epoch * len(make()))


@pytest.mark.parametrize('persistent', [False, True])
@pytest.mark.parametrize(
    ('make', 'loop', 'cut'),
    [
        (infinite, iter_loop(), 4),
        (default, iter_loop(), 5),
        (default, epoch_loop(), 6),
    ],
    ids=['endless', 'iterations', 'epochs'],
)
def test_workers_get_the_same_samples(tmp_path, make, loop, cut, persistent):
    def with_workers():
        made = make(num_workers=2, persistent_workers=persistent)
        made.dataset.noise = False
        return made

    check(tmp_path, with_workers, loop, [cut])


@pytest.mark.parametrize(
    ('make', 'loop', 'cut'),
    [(infinite, iter_loop(6), 3), (default, epoch_loop(2), 5)],
    ids=['iterations', 'epochs'],
)
def test_replay_repeats_the_random_numbers_of_workers(
    tmp_path, make, loop, cut
):
    check(
        tmp_path,
        lambda: make(num_workers=2),
        {**loop, 'replay': True},
        [cut],
    )


@pytest.mark.parametrize('rank', [0, 1])
@pytest.mark.parametrize(
    ('kind', 'loop', 'cuts'),
    [
        ('endless', iter_loop(), (1, 4, 9)),
        ('shuffled', iter_loop(), (1, 4, 9)),
        ('not rounded', epoch_loop(5), (1, 2, 5)),
    ],
)
def test_each_rank_goes_on_with_its_samples(
    tmp_path, monkeypatch, rank, kind, loop, cuts
):
    monkeypatch.setattr(
        mmengine.dataset.sampler, 'get_dist_info', lambda: (rank, 2)
    )
    check(tmp_path, {**FINITE, **ENDLESS}[kind], loop, cuts)


@pytest.mark.parametrize(
    ('make', 'loop', 'cut'),
    [
        (infinite, iter_loop(), 7),
        (default, iter_loop(), 7),
        (default, epoch_loop(), 7),
        (default, epoch_loop(), 8),
    ],
)
def test_stock_checkpoints_keep_the_order(tmp_path, make, loop, cut):
    whole = train(tmp_path / 'whole', make(), loop, stock=True)
    rest = resume(
        tmp_path / 'rest',
        tmp_path / 'whole' / f'iter_{cut}.pth',
        make(),
        loop,
        stock=True,
    )
    assert diary(rest).numbers == diary(whole).numbers[cut:]
    assert rest.iter == whole.iter


def test_the_order_survives_a_new_seed(tmp_path):
    def unseeded():
        data = Numbered()
        return loader(data, sampler=InfiniteSampler(data))

    first, second = unseeded(), unseeded()
    assert first.sampler.seed != second.sampler.seed
    whole = train(tmp_path / 'whole', first, iter_loop())
    checkpoint = tmp_path / 'whole' / 'iter_4.pth'
    rest = resume(tmp_path / 'rest', checkpoint, second, iter_loop())
    compare(whole, rest, 4)


def with_lasting_workers() -> DataLoader:
    made = default(num_workers=2, persistent_workers=True)
    made.dataset.noise = False
    return made


@pytest.mark.parametrize(
    ('make', 'replay'),
    [(infinite, False), (infinite, True), (with_lasting_workers, False)],
)
def test_a_loader_that_was_used_before(tmp_path, make, replay):
    used, loop = make(), iter_loop(replay=replay)
    whole = build(tmp_path / 'whole', used, loop)
    whole.train()
    checkpoint = tmp_path / 'whole' / 'iter_5.pth'
    rest = resume(tmp_path / 'rest', checkpoint, used, loop)
    compare(whole, rest, 5)


class HandsOverLate(Diary):
    def after_load_checkpoint(self, runner, checkpoint):
        self.checkpoint = checkpoint

    def before_train(self, runner):
        super().after_load_checkpoint(runner, self.checkpoint)


@pytest.mark.parametrize(
    'loop', [iter_loop(), epoch_loop()], ids=['iterations', 'epochs']
)
def test_before_train_is_early_enough(tmp_path, loop):
    whole = train(tmp_path / 'whole', default(), loop)
    runner = build(tmp_path / 'rest', default(), loop, diary=HandsOverLate())
    runner.resume(str(tmp_path / 'whole' / 'iter_6.pth'))
    runner.train()
    compare(whole, runner, 6)


def test_skipped_samples_are_not_read(tmp_path):
    train(tmp_path / 'whole', infinite(), iter_loop())
    made = infinite()
    resume(
        tmp_path / 'rest', tmp_path / 'whole' / 'iter_8.pth', made, iter_loop()
    )
    assert made.dataset.reads == 3 * 3
    assert type(made.batch_sampler) is BatchSampler


def test_a_checkpoint_that_only_gives_weights(tmp_path):
    whole = train(tmp_path / 'whole', infinite(), iter_loop())
    tuned = train(
        tmp_path / 'tuned',
        infinite(),
        iter_loop(),
        load_from=str(tmp_path / 'whole' / 'iter_4.pth'),
    )
    assert diary(tuned).state
    assert diary(tuned).numbers == diary(whole).numbers


def test_nothing_is_read_before_training(tmp_path):
    class Look(Diary):
        def before_train(self, runner):
            self.reads = made.dataset.reads
            self.iterator = runner.train_loop._batches

    made, look = infinite(), Look()
    train(tmp_path, made, iter_loop(), hooks=[look])
    assert (look.reads, look.iterator) == (0, None)


def test_a_loop_with_a_run_of_its_own_reads_the_same(tmp_path):
    class OwnRun(SafeIterBasedTrainLoop):
        def run(self):
            self.runner.call_hook('before_train')
            self.runner.call_hook('before_train_epoch')
            while self._iter < self._max_iters:
                self.run_iter(next(self.dataloader_iterator))
            self.runner.call_hook('after_train')

    whole = train(tmp_path / 'whole', infinite(), iter_loop())
    loop = dict(iter_loop(), type=OwnRun)
    own = train(tmp_path / 'own', infinite(), loop)
    assert diary(own).numbers == diary(whole).numbers
    checkpoint = tmp_path / 'own' / 'iter_4.pth'
    resumed = resume(tmp_path / 'resumed', checkpoint, infinite(), loop)
    assert diary(resumed).numbers == diary(whole).numbers[4:]
