"""Copies of tensors in host memory, which is used again and again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from mmstable.optim.buffer_copy import can_write


class HostCopy(NamedTuple):
    """The values of a tensor, and the device it was on."""

    values: Tensor
    device: torch.device

    def restore(self, present: Tensor | None) -> Tensor:
        """A tensor with these values: the present one, if it can hold them."""
        if present is None or not can_write(present, self.values):
            return self.values.clone().to(self.device)
        with torch.no_grad():
            return present.copy_(self.values)


class HostMemory:
    """Makes copies without waiting for an accelerator.

    Args:
        free (Mapping, optional): Memory of copies that are no longer needed,
            by their names. Defaults to None.
    """

    def __init__(self, free: Mapping[str, Tensor] | None = None) -> None:
        self._free = free or {}
        self.used: dict[str, Tensor] = {}

    def copy(self, name: str, tensor: Tensor) -> HostCopy:
        """Copy a tensor, to the memory that had this name before."""
        free = self._free.get(name)
        if (
            free is None
            or free.shape != tensor.shape
            or free.dtype != tensor.dtype
        ):
            # Only into pinned memory a copy can run beside the training.
            pin = tensor.device.type != 'cpu'
            free = torch.empty_like(tensor, device='cpu', pin_memory=pin)
        # What is queued after this cannot overtake it.
        free.copy_(tensor.detach(), non_blocking=True)
        self.used[name] = free
        return HostCopy(free, tensor.device)
