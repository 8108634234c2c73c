"""The tensors of a module, and room for those that have changed shape."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from mmstable.optim.buffer_copy import can_write

# Other sparse layouts are for tables, and torch cannot write to them.
_READABLE = (torch.strided, torch.sparse_coo)


class Room(NamedTuple):
    """A tensor without memory, and the device it was on."""

    like: Tensor
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> Room:
        """Room for a tensor like this."""
        if tensor.layout is torch.strided:
            like = torch.empty_like(tensor, device='meta')
        else:
            # Without entries it takes no memory.
            like = torch.empty(
                tensor.shape, dtype=tensor.dtype, layout=tensor.layout
            )
        return cls(like, tensor.device)

    def fits(self, tensor: Tensor | None) -> bool:
        """Whether values can be written to this tensor in place."""
        return tensor is not None and can_write(tensor, self.like)

    def make(self) -> Tensor:
        """A new tensor, without values."""
        return torch.empty_like(self.like, device=self.device)


def module_tensors(module: Module) -> dict[str, Tensor]:
    """Weights and buffers, those that are not saved included."""
    # Not `state_dict`: that leaves out buffers which are not persistent.
    found = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        name: tensor
        for name, tensor in found.items()
        if tensor.layout in _READABLE
    }


def buffer_rooms(module: Module) -> dict[str, Room]:
    """Room for every buffer; a forward pass may change their shape."""
    return {
        name: Room.of(buffer)
        for name, buffer in module.named_buffers()
        if buffer.layout in _READABLE
    }


def restore_buffers(module: Module, rooms: dict[str, Room]) -> None:
    """Replace the buffers that cannot take their old values in place."""
    for name, room in rooms.items():
        owner, _, leaf = name.rpartition('.')
        buffers = module.get_submodule(owner)._buffers
        if leaf in buffers and not room.fits(buffers[leaf]):
            buffers[leaf] = room.make()
