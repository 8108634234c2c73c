"""Workers of a data loader that start as they did before a resume."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from mmengine.dataset import worker_init_fn
from torch import Generator
from torch.utils.data import DataLoader


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
