"""The state of a run in host memory, and the two newest of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mmstable.run_state.part import Sections


class Snapshot:
    """A copy of a state, made without waiting for an accelerator.

    Args:
        tensors (Sections): Live tensors to copy.
        parts (Mapping): What else there is, by part.
        memory (Snapshot, optional): An old one whose memory can be used
            again. Defaults to None.
    """

    def __init__(
        self,
        tensors: Sections,
        parts: Mapping[str, Any],
        memory: Snapshot | None = None,
    ) -> None:
        self.parts = parts
        used = {} if memory is None else memory.copies
        live = _flat(tensors)
        self.copies: dict[str, Tensor] = {
            name: _memory_for(tensor, used.get(name))
            for name, tensor in live.items()
        }
        with torch.no_grad():
            for name, tensor in live.items():
                # What is queued after this cannot overtake it.
                self.copies[name].copy_(tensor, non_blocking=True)

    def write_to(self, tensors: Sections) -> None:
        """Give live tensors the values that they had."""
        live = _flat(tensors)
        with torch.no_grad():
            for name, value in self.copies.items():
                if name in live and live[name].shape == value.shape:
                    live[name].copy_(value)


class Snapshots:
    """The two newest.

    A rollback goes to the newest one. If that did not help, that is, if the
    next rollback comes before a new one was taken, it goes to the older one.
    """

    COUNT = 2

    def __init__(self) -> None:
        self._kept: list[tuple[int, Snapshot]] = []
        self._used: Snapshot | None = None

    def oldest(self) -> Snapshot | None:
        """The one to be dropped for the next, if there are two."""
        return self._kept[0][1] if len(self._kept) == self.COUNT else None

    def add(self, iteration: int, snapshot: Snapshot) -> None:
        """Keep one, in the place of the oldest if there are two."""
        self._kept = [*self._kept[1 - self.COUNT :], (iteration, snapshot)]
        self._used = None

    def choose(self) -> tuple[int, Snapshot] | None:
        """Which to restore, and its iteration; None if there is none."""
        if len(self._kept) > 1 and self._kept[-1][1] is self._used:
            # What did not help is nothing to keep.
            self._kept.pop()
        if not self._kept:
            return None
        self._used = self._kept[-1][1]
        return self._kept[-1]


def _flat(sections: Sections) -> dict[str, Tensor]:
    return {
        f'{section}.{name}': tensor.detach()
        for section, tensors in sections.items()
        for name, tensor in tensors.items()
    }


def _memory_for(tensor: Tensor, used: Tensor | None) -> Tensor:
    if (
        used is not None
        and used.shape == tensor.shape
        and used.dtype == tensor.dtype
    ):
        return used
    on_accelerator = tensor.device.type != 'cpu'
    # Only into pinned memory a copy can run beside the training.
    return torch.empty_like(tensor, device='cpu', pin_memory=on_accelerator)
