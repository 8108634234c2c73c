"""A look at the gradients of this rank, before they are mixed with others."""

from __future__ import annotations

from collections import deque
from weakref import WeakKeyDictionary

import torch
from mmengine.dist import get_world_size
from torch import Tensor, distributed
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

# Buckets whose extremes are kept: far more than one step has.
_MOST_BUCKETS = 4096


class GradProbe:
    """Remembers whether this rank's own gradients were finite.

    It takes the place in DDP that torch has for a communication hook, reads
    every bucket once and then averages it as DDP does, bit by bit. Nothing
    is waited for.
    """

    def __init__(self) -> None:
        self._extremes: deque[Tensor] = deque(maxlen=_MOST_BUCKETS)

    def found_bad(self) -> bool:
        """Whether there was a NaN or an Inf; waits for the device."""
        if not self._extremes:
            return False
        return not bool(torch.isfinite(torch.stack([*self._extremes])).all())

    def forget(self) -> None:
        """A new step begins."""
        self._extremes.clear()

    def reduce(
        self, bucket: distributed.GradBucket
    ) -> torch.futures.Future[Tensor]:
        """Look, then average over all ranks."""
        values = bucket.buffer()
        # One read pass, exact, and a NaN shows in both.
        least, most = torch.aminmax(values)
        self._extremes.append(torch.stack([least, most]).float())
        # As DDP itself: a division would round differently.
        values.mul_(1.0 / get_world_size())
        work = distributed.all_reduce(values, async_op=True)
        return work.get_future().then(_first)


def _first(future: torch.futures.Future[list[Tensor]]) -> Tensor:
    return future.value()[0]


# DDP has one place for a hook, but several wrappers may train one model.
_LOOKS: WeakKeyDictionary[Module, GradProbe] = WeakKeyDictionary()


def probe_before_reduction(model: Module) -> list[GradProbe]:
    """Look at the gradients of all DDP modules in a model from now on.

    One that has a communication hook already is left alone.
    """
    found = []
    for module in model.modules():
        if not isinstance(module, DistributedDataParallel):
            continue
        if module not in _LOOKS and _is_free(module):
            look = GradProbe()
            if _register(module, look):
                _LOOKS[module] = look
        if module in _LOOKS:
            found.append(_LOOKS[module])
    return found


def _register(module: DistributedDataParallel, look: GradProbe) -> bool:
    """Whether a module takes the probe; it has one hook at most."""
    try:
        # torch does not understand annotations that are text.
        module.register_comm_hook(
            look, lambda state, bucket: state.reduce(bucket)
        )
    except RuntimeError:
        # torch 2.1 has no list of hooks, and refuses a second one.
        if hasattr(module, '_comm_hooks'):
            raise
        return False
    return True


def _is_free(module: DistributedDataParallel) -> bool:
    # A group of its own, or buckets in other types, are for DDP to handle.
    return (
        not getattr(module, '_comm_hooks', [])
        and module.process_group is distributed.group.WORLD
        and module.mixed_precision is None
    )
