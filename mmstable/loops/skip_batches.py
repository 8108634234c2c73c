"""A pass over the data that starts late, without reading what it skips."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
)

from mmstable.loops.reread_batches import reread
from mmstable.run_state.data_position import DataPosition, sampler_of


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
    for _ in range(passes if sampler.shuffle else 0):
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
    """Stands for an index sampler whose passes start late."""

    def __init__(self, sampler: Iterable[Any], skip: int) -> None:
        self._sampler, self.skip = sampler, skip
        self.late: _Late | None = None

    def __iter__(self) -> Iterator[Any]:
        self.late = _Late(iter(self._sampler), self.skip)
        return self.late

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]


class _Late:
    """An iterator that skips its first items."""

    def __init__(self, items: Iterator[Any], skip: int) -> None:
        self._items, self._skip = items, skip

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.skip()
        return next(self._items)

    def skip(self) -> None:
        """Leave them out now, if that is not done yet."""
        skip, self._skip = self._skip, 0
        next(islice(self._items, skip, skip), None)


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
    if stand_in.late is None:
        # A loader that does not ask its sampler.
        reread(batches, skip)
    else:
        # Before any state of random generators is restored: samplers draw
        # their order when they are first asked.
        stand_in.late.skip()
    return batches
