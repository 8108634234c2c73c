"""Is there room to do a step again?"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.nn import Module

from mmstable.forensics.storage_map import walk_tensors

_GIB = 2**30


class Room(NamedTuple):
    """Memory for a replay, in GiB.

    Args:
        needed (float): What it takes.
        free (float): What there is.
    """

    needed: float
    free: float

    @property
    def is_enough(self) -> bool:
        """Whether it fits."""
        return self.needed <= self.free


def room_for(model: Module, batch: Any, device: torch.device) -> Room | None:
    """The memory that a replay takes; None if nobody knows.

    On an accelerator it is what the step itself has taken at its peak; on a
    CPU nobody has counted that, and the copies alone have to fit.

    Args:
        model (Module): The model.
        batch (Any): What the data loader gave.
        device (torch.device): Where the model is.
    """
    module: Any = getattr(torch, device.type, None)
    if hasattr(module, 'mem_get_info'):
        free, _ = module.mem_get_info(device)
        used = module.memory_allocated(device)
        cached = module.memory_reserved(device) - used
        needed = module.max_memory_allocated(device) - used
        return Room(needed / _GIB, (free + cached) / _GIB)
    try:
        import psutil
    except ImportError:
        return None
    tensors = [one for _, one in walk_tensors(batch)]
    tensors += [*model.parameters(), *model.buffers()]
    copied = sum(one.numel() * one.element_size() for one in tensors)
    return Room(2 * copied / _GIB, psutil.virtual_memory().available / _GIB)
