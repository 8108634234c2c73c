"""How many processes read ahead how many batches?"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch.utils.data import DataLoader

from mmstable.run_state.workers import forget_workers, has_workers

# What torch takes where nothing is said.
_PREFETCH = 2


class Loading(NamedTuple):
    """The settings of a data loader that take host memory.

    Args:
        workers (int): Processes that read data.
        prefetch (int): Batches that each of them reads ahead.
    """

    workers: int = 0
    prefetch: int = 0


def loading_of(loader: Any) -> Loading:
    """What a data loader does; nothing if it has no workers."""
    if not has_workers(loader):
        return Loading()
    return Loading(loader.num_workers, loader.prefetch_factor or _PREFETCH)


def halve_loading(loader: DataLoader) -> Loading | None:
    """Half the workers, half the prefetch, from the next pass on.

    Args:
        loader (DataLoader): The loader.

    Returns:
        Loading or None: The new settings; None if there is nothing to halve.
    """
    before = loading_of(loader)
    after = Loading(max(1, before.workers // 2), max(1, before.prefetch // 2))
    if before.workers == 0 or after == before:
        return None
    loader.num_workers, loader.prefetch_factor = after
    forget_workers(loader)
    return after


def batches_of_data(loader: Any, world_size: int) -> int:
    """Iterations in which all data is read once; 0 if nobody knows."""
    try:
        samples = len(loader.dataset)
    except (AttributeError, TypeError):
        return 0
    batch_size = getattr(loader, 'batch_size', None)
    if batch_size is None:
        # A batch sampler of its own: a pass of that is the best guess.
        return len(loader) if hasattr(loader, '__len__') else 0
    return -(-samples // (batch_size * world_size))
