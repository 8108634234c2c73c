"""Give all ranks the weights and the optimizer state of one of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from mmengine.dist import broadcast, broadcast_object_list
from torch import Tensor
from torch.optim import Optimizer

from mmstable.numerics.clipping import NormClip


def copy_tensors(tensors: Iterable[Tensor], source: int) -> None:
    """Overwrite tensors by those of a rank. A collective call.

    Args:
        tensors (Iterable[Tensor]): The same list on all ranks.
        source (int): The rank to copy from.
    """
    with torch.no_grad():
        for tensor in tensors:
            whole = tensor.detach().contiguous()
            broadcast(whole, source)
            if whole.data_ptr() != tensor.data_ptr():
                tensor.copy_(whole)


def copy_optimizer(optimizer: Optimizer, source: int) -> None:
    """Overwrite weights and state of an optimizer. A collective call.

    Args:
        optimizer (Optimizer): The optimizer.
        source (int): The rank to copy from.
    """
    params = [p for group in optimizer.param_groups for p in group['params']]
    copy_tensors(params, source)
    layouts = _tell([_layout(optimizer, param) for param in params], source)
    for param, layout in zip(params, layouts):
        if not layout:
            # It has never been updated there.
            optimizer.state.pop(param, None)
            continue
        state = optimizer.state[param]
        for key, value in layout.items():
            if isinstance(value, _Shape):
                if not isinstance(state.get(key), Tensor):
                    state[key] = value.make(param)
                copy_tensors([state[key]], source)
            else:
                state[key] = value


def copy_limits(clip: object, source: int) -> None:
    """Overwrite what clipping has learned. A collective call.

    Args:
        clip (Clip, optional): How gradients are clipped.
        source (int): The rank to copy from.
    """
    if not isinstance(clip, NormClip):
        return
    learned = _tell([g.limit.state_dict() for g in clip.groups], source)
    for group, state in zip(clip.groups, learned):
        group.limit.load_state_dict(state)


class _Shape:
    """What a rank has to know to make room for a tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self._shape = tuple(tensor.shape)
        self._dtype = tensor.dtype
        self._on_host = tensor.device.type == 'cpu'

    def make(self, param: Tensor) -> Tensor:
        device = 'cpu' if self._on_host else param.device
        return torch.zeros(self._shape, dtype=self._dtype, device=device)


def _layout(optimizer: Optimizer, param: Tensor) -> dict[str, Any]:
    return {
        key: _Shape(value) if isinstance(value, Tensor) else value
        for key, value in optimizer.state.get(param, {}).items()
    }


def _tell(value: list[Any], source: int) -> list[Any]:
    told: list[Any] = [value]
    broadcast_object_list(told, source)
    return told[0]
