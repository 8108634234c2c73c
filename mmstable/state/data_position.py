"""The position of a run in its data, and how to start there again.

A position counts passes over the data and batches in the current pass. A
resumed run skips the batches before it: by the indices of the sampler, or, for
data without indices, by reading them again. Workers get the seed that they had
before. :func:`data_warnings` lists why the data may differ all the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import islice
from typing import Any, Callable

import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler, worker_init_fn
from mmengine.dist import get_world_size
from mmengine.logging import print_log
from torch import Generator
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from mmstable.io.schema import (
    count,
    integer,
    mapping_of,
    optional,
    record,
    text,
)
from mmstable.messages import _, short_repr
from mmstable.state.rng import samplers_of

_SIZE = integer(1, 2**53)
# Added to the epoch, it has to stay in what torch takes for a seed.
_SEED = integer(-(2**62), 2**63)
# numpy takes 32 bits; each worker adds its number.
_WORKER_SEED = integer(0, 2**32 - 2**20)
# One pass over these has as many indices as their length says.
_FINITE = (
    DefaultSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)


@dataclass(frozen=True)
class DataPosition:
    """A position between two batches.

    Args:
        epoch (int): Finished passes over the data. Defaults to 0.
        index (int): Batches taken from the pass after those. Defaults to 0.
    """

    epoch: int = 0
    index: int = 0


@dataclass(frozen=True)
class DataSignature:
    """What decides which samples are in which batch.

    Args:
        sampler (str): Name of the sampler's class.
        seed (int, optional): Its seed, if it has one.
        batch_size (int): Samples in a batch on one rank.
        dataset_length (int, optional): Length of the data set, if known.
        world_size (int): Number of ranks.
    """

    sampler: str
    seed: int | None
    batch_size: int
    dataset_length: int | None
    world_size: int

    @classmethod
    def of(cls, dataloader: DataLoader) -> DataSignature:
        """The facts of a data loader."""
        sampler = sampler_of(dataloader)
        seed = getattr(sampler, 'seed', None)
        batches = getattr(dataloader, 'batch_sampler', None)
        size = getattr(batches, 'batch_size', None)
        try:
            length = len(dataloader.dataset)  # type: ignore[arg-type]
        except TypeError:
            length = None
        return cls(
            type(sampler).__name__,
            None if seed is None else int(seed),
            size or getattr(dataloader, 'batch_size', None) or 1,
            length,
            get_world_size(),
        )

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> DataSignature:
        """Those that the saved state of a loop has in it."""
        return cls(**{field.name: state[field.name] for field in fields(cls)})

    def changes(self, now: DataSignature) -> list[str]:
        """What is not as it was, apart from the seed, in words."""
        before, after = asdict(self), asdict(now)
        return [
            f'{name} {before[name]} -> {after[name]}'
            for name in before
            if name != 'seed' and before[name] != after[name]
        ]

    def batches_now(self, batches: int, now: DataSignature) -> int:
        """How many of today's batches have the samples of these."""
        samples = batches * self.batch_size * self.world_size
        return samples // (now.batch_size * now.world_size)


# Types of the attributes by which the samplers of two runs are compared.
_PLAIN = (bool, int, float, str)


def _plain(value: Any) -> Any:
    if type(value) not in _PLAIN:
        raise ValueError(
            f'must be a number or a text, got {short_repr(value)}'
        )
    return value


_CHECK = record(
    sampler=text(),
    seed=optional(_SEED),
    batch_size=_SIZE,
    dataset_length=optional(count),
    world_size=_SIZE,
    epoch=count,
    index=count,
    iteration=count,
    validated=integer(-1, 2**53),
    worker_seed=optional(_WORKER_SEED),
    samplers=mapping_of(text(), _plain),
)


def check_position(value: Any) -> dict[str, Any]:
    """Check what ``state_dict`` of a loop gave.

    Raises:
        ValueError: If a loop cannot be there.
    """
    state = _CHECK(value)
    for name in ('epoch', 'index'):
        if state[name] > state['iteration']:
            raise ValueError(
                f'`{name}`: {state[name]} after {state["iteration"]} '
                'iterations'
            )
    return state


def carry_over(
    position: DataPosition,
    iteration: int,
    before: DataSignature,
    now: DataSignature,
    length: int | None,
) -> DataPosition:
    """The position after the same number of samples, with other settings.

    Args:
        position (DataPosition): The position with the settings of then.
        iteration (int): Batches taken in all until then.
        before (DataSignature): The settings of then.
        now (DataSignature): The settings of now.
        length (int, optional): Batches in a pass now; None if it never ends.
    """
    if before.sampler == now.sampler:
        index = before.batches_now(position.index, now)
        index = index if length is None else min(index, length)
        return DataPosition(position.epoch, index)
    batches = before.batches_now(iteration, now)
    return DataPosition(*(divmod(batches, length) if length else (0, batches)))


def position_of_iteration(
    dataloader: DataLoader, iteration: int
) -> DataPosition | None:
    """Return the position after so many batches; None if unknown."""
    if iteration == 0 or is_endless(dataloader):
        return DataPosition(0, iteration)
    length = pass_length(dataloader)
    return None if length is None else DataPosition(*divmod(iteration, length))


def pass_length(dataloader: DataLoader) -> int | None:
    """Batches in one pass over the data, if that is certain."""
    batches = getattr(dataloader, 'batch_sampler', None)
    certain = type(batches) in (BatchSampler, type(None))
    if certain and isinstance(sampler_of(dataloader), _FINITE):
        return len(dataloader)
    return None


def is_endless(dataloader: DataLoader) -> bool:
    """Whether one pass never ends."""
    return isinstance(sampler_of(dataloader), InfiniteSampler)


def sampler_of(dataloader: DataLoader) -> Any:
    """The sampler that decides about the order."""
    # With a batch sampler of its own, a loader's `sampler` means nothing.
    batches = getattr(dataloader, 'batch_sampler', None)
    sampler = getattr(batches, 'sampler', None)
    return getattr(dataloader, 'sampler', None) if sampler is None else sampler


def set_epoch(dataloader: DataLoader, epoch: int) -> None:
    """Set the epoch of the sampler, if it has one."""
    sampler = sampler_of(dataloader)
    if hasattr(sampler, 'set_epoch'):
        sampler.set_epoch(epoch)


def workers_persist(dataloader: Any) -> bool:
    """Whether the workers of a pass live on in the next one."""
    return has_workers(dataloader) and bool(dataloader.persistent_workers)


def has_workers(dataloader: Any) -> bool:
    """Whether other processes read the data."""
    return isinstance(dataloader, DataLoader) and dataloader.num_workers > 0


def forget_workers(dataloader: Any) -> None:
    """Let the next pass start new workers."""
    if workers_persist(dataloader):
        dataloader._iterator = None


def worker_seed(dataloader: Any) -> int | None:
    """The seed that mmengine gives to workers, if it does."""
    start = getattr(dataloader, 'worker_init_fn', None)
    if isinstance(start, partial) and start.func is worker_init_fn:
        return start.keywords.get('seed')
    return None


def seed_workers(dataloader: Any, seed: int | None) -> None:
    """Give workers the seed of the run that is resumed.

    Args:
        dataloader (DataLoader): The loader.
        seed (int, optional): What :func:`worker_seed` gave then.
    """
    now = worker_seed(dataloader)
    if seed is not None and now is not None and seed != now:
        start = dataloader.worker_init_fn
        keywords = {**start.keywords, 'seed': seed}
        dataloader.worker_init_fn = partial(start.func, **keywords)


def draw_worker_seed(dataloader: Any) -> None:
    """Draw what a loader draws when a pass starts, and forget it."""
    if isinstance(dataloader, DataLoader):
        torch.empty((), dtype=torch.int64).random_(
            generator=dataloader.generator
        )


@contextmanager
def drawing_no_seed(dataloader: DataLoader) -> Iterator[None]:
    """Let workers start without a draw from the generator of the run.

    Workers that persist draw their seed once, in the first pass. If they are
    started in a later one, all who draw after them have to see what they
    would have seen.
    """
    before, dataloader.generator = dataloader.generator, Generator()
    try:
        yield
    finally:
        dataloader.generator = before


def reread(batches: Iterator[Any], count: int) -> None:
    """Draw batches and drop them.

    Args:
        batches (Iterator): Where to draw from. It may end early.
        count (int): How many to draw.
    """
    start = time.monotonic()
    if count:
        line = _('Reading {count} past batches again ...', count=count)
        print_log(line, logger='current')
    next(islice(batches, count, count), None)
    line = _(
        'Read {count} past batches again in {seconds:.1f} s.',
        count=count,
        seconds=time.monotonic() - start,
    )
    print_log(line, logger='current')


def can_skip(dataloader: Any) -> bool:
    """Whether indices decide what the loader reads."""
    return isinstance(dataloader, DataLoader) and not isinstance(
        dataloader.dataset, IterableDataset
    )


def iterate_from(dataloader: DataLoader, skip: int) -> Iterator[Any]:
    """Start a pass after its first batches.

    Args:
        dataloader (DataLoader): The loader.
        skip (int): How many batches to skip.
    """
    sampler, batches = sampler_of(dataloader), dataloader.batch_sampler
    if type(sampler) is InfiniteSampler and type(batches) is BatchSampler:
        taken = skip * batches.batch_size
        sampler.indices = infinite_indices(sampler, taken)
        return iter(dataloader)
    return _iterate_late(dataloader, skip)


def infinite_indices(sampler: InfiniteSampler, taken: int) -> Iterator[int]:
    """What an ``InfiniteSampler`` gives after its first indices.

    Whole shuffles of the past are drawn and not looked at, which matters
    where many ranks share the indices.

    Args:
        sampler (InfiniteSampler): The sampler.
        taken (int): Number of indices this rank has had.
    """
    first = sampler.rank + taken * sampler.world_size
    passes, offset = divmod(first, sampler.size)
    generator = torch.Generator()
    generator.manual_seed(sampler.seed)
    for __ in range(passes if sampler.shuffle else 0):
        torch.randperm(sampler.size, generator=generator)

    def endless() -> Iterator[int]:
        while True:
            if sampler.shuffle:
                order = torch.randperm(sampler.size, generator=generator)
            else:
                order = torch.arange(sampler.size)
            yield from order.tolist()

    yield from islice(endless(), offset, None, sampler.world_size)


def batch_indices(dataloader: Any, position: DataPosition) -> list[int] | None:
    """The samples of the batch that ends at a position.

    Args:
        dataloader (DataLoader): The loader, in the pass of the position.
        position (DataPosition): The position after the batch.

    Returns:
        list[int]: Their indices in the data set; None if the sampler cannot
        tell twice.
    """
    batches = getattr(dataloader, 'batch_sampler', None)
    if type(batches) is not BatchSampler or position.index < 1:
        return None
    sampler, size = sampler_of(dataloader), batches.batch_size
    start = (position.index - 1) * size
    if type(sampler) is InfiniteSampler:
        return list(islice(infinite_indices(sampler, start), size))
    if type(sampler) in (DefaultSampler, DistributedSampler):
        return list(islice(sampler, start, start + size))
    return None


class _LateSampler:
    """Stands for an index sampler whose next pass starts late.

    It is its own iterator: a loader reads one pass at a time.
    """

    def __init__(self, sampler: Iterable[Any], skip: int) -> None:
        self._sampler, self.skip = sampler, skip
        self._items: Iterator[Any] | None = None
        self._due = 0

    def __iter__(self) -> Iterator[Any]:
        self._items, self._due = iter(self._sampler), self.skip
        return self

    def __next__(self) -> Any:
        self.start()
        return next(self._items)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]

    def start(self) -> bool:
        """Skip what is to be skipped; False if no loader has asked yet."""
        if self._items is None:
            return False
        due, self._due = self._due, 0
        next(islice(self._items, due, due), None)
        return True


def _iterate_late(dataloader: DataLoader, skip: int) -> Iterator[Any]:
    name = 'sampler' if dataloader.batch_sampler is None else 'batch_sampler'
    # A loader locks this attribute. It has its own back before anyone looks.
    attributes = vars(dataloader)
    sampler = attributes[name]
    stand_in = attributes[name] = _LateSampler(sampler, skip)
    try:
        batches = iter(dataloader)
    finally:
        attributes[name] = sampler
    # Not earlier: with workers, torch asks twice for one pass. Not later:
    # workers that persist ask the stand-in for all passes to come.
    stand_in.skip = 0
    # Before any state of random generators is restored: samplers draw their
    # order when they are first asked.
    if not stand_in.start():
        # A loader that does not ask its sampler.
        reread(batches, skip)
    return batches


class EndlessBatches:
    """Iterate a loader again and again.

    Args:
        dataloader (DataLoader): The loader.
        open_pass (Callable): Gives the batches of a pass, without as many of
            the first ones as its argument says.
        position (DataPosition): Where to start.
    """

    def __init__(
        self,
        dataloader: DataLoader,
        open_pass: Callable[[int], Iterator[Any]],
        position: DataPosition,
    ) -> None:
        self._dataloader, self._open_pass = dataloader, open_pass
        self.position = position
        # The first pass is left as DistSamplerSeedHook has set it.
        if position.epoch > 0:
            set_epoch(dataloader, position.epoch)
        self._batches = open_pass(position.index)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._start_next_pass()
            batch = next(self._batches)
        self.position = DataPosition(
            self.position.epoch, self.position.index + 1
        )
        return batch

    def _start_next_pass(self) -> None:
        if self.position.epoch == 0:
            print_log(
                _(
                    'The data was used once and starts again, and so on. '
                    'With InfiniteSampler workers would not have to restart.'
                ),
                logger='current',
            )
        self.position = DataPosition(self.position.epoch + 1)
        set_epoch(self._dataloader, self.position.epoch)
        self._batches = self._open_pass(0)


def data_warnings(
    dataloader: Any, replay: bool, state: Mapping[str, Any]
) -> list[str]:
    """List why the data may differ from that of an uninterrupted run.

    Args:
        dataloader (DataLoader): The training data.
        replay (bool): Whether past batches of a pass are read again.
        state (Mapping): What ``state_dict`` of the loop gave.
    """
    changes = DataSignature.from_state(state).changes(
        DataSignature.of(dataloader)
    )
    if changes:
        return [
            _('the data settings have changed: {changes}', changes=changes)
        ]
    return [
        *_worker_warnings(dataloader, replay, state),
        *_sampler_warnings(dataloader, state),
    ]


def _worker_warnings(
    dataloader: Any, replay: bool, state: Mapping[str, Any]
) -> Iterator[str]:
    if not can_skip(dataloader):
        if state['epoch'] > 0:
            yield _(
                '{dataset} is read again, and its passes may not be alike',
                dataset=type(dataloader.dataset).__name__,
            )
    elif has_workers(dataloader) and not replay:
        persist = workers_persist(dataloader) and not is_endless(dataloader)
        if state['index'] > 0 or persist:
            yield _(
                'random numbers drawn inside workers are new; '
                'train_cfg=dict(replay=True) repeats them'
            )


def _sampler_warnings(
    dataloader: Any, state: Mapping[str, Any]
) -> Iterator[str]:
    for sampler in samplers_of(dataloader):
        if isinstance(sampler, (DefaultSampler, InfiniteSampler)):
            continue
        for attribute, value in vars(sampler).items():
            if isinstance(value, Iterator):
                yield _(
                    '{sampler}.{attribute} is an iterator, which cannot be '
                    'saved',
                    sampler=type(sampler).__name__,
                    attribute=attribute,
                )
    now = sampler_numbers(dataloader)
    for key, value in (state.get('samplers') or {}).items():
        if key in now and now[key] != value:
            yield _(
                '{attribute} was {before} when this pass began, and is {now} '
                'now',
                attribute=key,
                before=value,
                now=now[key],
            )


def sampler_numbers(dataloader: Any) -> dict[str, Any]:
    """Numbers and texts that samplers keep, without what is set again."""
    return {
        f'{type(sampler).__name__}.{name}': value
        for sampler in samplers_of(dataloader)
        for name, value in getattr(sampler, '__dict__', {}).items()
        if type(value) in _PLAIN and name not in ('epoch', 'seed', 'rank')
    }
