"""Run a model without anything of that being left behind."""

from __future__ import annotations

import copy
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from mmstable.run_state.rng import capture_rng, restore_rng

_CONTAINERS = (list, dict, set, deque, OrderedDict)


@contextmanager
def traceless(model: Module) -> Iterator[None]:
    """Restore, bit by bit, all that a training step may change.

    That is weights, buffers, gradients, what modules keep in their
    attributes (modes, counters, hooks), random generators and the cache of
    autocast. Inside, parameters have no gradients, and buffers are copies.

    Args:
        model (Module): The model, without DDP and the like around it.
    """
    rng = capture_rng()
    attributes = [(module, _keep(vars(module))) for module in model.modules()]
    weights = [_Weight(one) for one in _unique_parameters(model)]
    try:
        for weight in weights:
            weight.parameter.grad = None
        _use_copies(model)
        yield
    finally:
        for module, kept in attributes:
            _restore(vars(module), kept)
        for weight in weights:
            weight.restore()
        torch.clear_autocast_cache()
        restore_rng(rng)


class _Weight:
    """A parameter as it was."""

    def __init__(self, parameter: Tensor) -> None:
        self.parameter = parameter
        self._grad = parameter.grad
        self._requires_grad = parameter.requires_grad
        # The memory of an accelerator is short.
        values = parameter.detach()
        is_host = values.device.type == 'cpu'
        self._values = values.clone() if is_host else values.cpu()

    def restore(self) -> None:
        # By `data`: nobody is to see that it was written to.
        self.parameter.data.copy_(self._values)
        self.parameter.requires_grad_(self._requires_grad)
        self.parameter.grad = self._grad


def _unique_parameters(model: Module) -> list[Tensor]:
    return list(dict.fromkeys(model.parameters()))


def _use_copies(model: Module) -> None:
    """Let a model work on copies of its buffers."""
    copies: dict[int, Tensor] = {}
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                copied = copies.get(id(buffer))
                if copied is None:
                    copied = copies[id(buffer)] = buffer.detach().clone()
                module._buffers[name] = copied


def _keep(attributes: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Values of attributes, and what is in those that can be changed."""
    return {name: (one, _content(one)) for name, one in attributes.items()}


def _content(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return copy.copy(value) if type(value) in _CONTAINERS else None


def _restore(
    attributes: dict[str, Any], kept: dict[str, tuple[Any, Any]]
) -> None:
    attributes.clear()
    for name, (value, content) in kept.items():
        attributes[name] = value
        if isinstance(value, Tensor):
            value.data.copy_(content)
        elif content is not None:
            value.clear()
            if isinstance(value, (dict, set)):
                value.update(content)
            else:
                value.extend(content)
