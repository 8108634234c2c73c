"""Where in the data is a run, and what does that depend on?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from mmengine.dataset import DefaultSampler, InfiniteSampler
from mmengine.dist import get_world_size
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from mmstable.checked_json import (
    count,
    integer,
    mapping_of,
    optional,
    record,
    text,
)
from mmstable.messages.printable import short_repr

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
        return cls(
            type(sampler).__name__,
            None if seed is None else int(seed),
            _batch_size(dataloader),
            _length(dataloader.dataset),
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


def _plain(value: Any) -> Any:
    if type(value) not in (bool, int, float, str):
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
        return DataPosition(
            position.epoch, index if length is None else min(index, length)
        )
    batches = before.batches_now(iteration, now)
    return (
        DataPosition(*divmod(batches, length))
        if length
        else DataPosition(0, batches)
    )


def position_of_iteration(
    dataloader: DataLoader, iteration: int
) -> DataPosition | None:
    """Where a run is that took so many batches; None if nobody knows."""
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
    """Tell the sampler which pass comes next, if it wants to know."""
    sampler = sampler_of(dataloader)
    if hasattr(sampler, 'set_epoch'):
        sampler.set_epoch(epoch)


def _batch_size(dataloader: DataLoader) -> int:
    batches = getattr(dataloader, 'batch_sampler', None)
    size = getattr(batches, 'batch_size', None)
    return size or getattr(dataloader, 'batch_size', None) or 1


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None
