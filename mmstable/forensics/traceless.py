"""Run a model without anything of that being left behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.jit import ScriptModule
from torch.nn import Module

from mmstable.forensics.own_copies import OwnCopies
from mmstable.run_state.rng import capture_rng, restore_rng

# What torch keeps in every module. Handles of hooks refer to these very
# containers, so that their content is restored; all else is replaced by
# copies.
_OF_TORCH = frozenset(vars(Module()))


@contextmanager
def traceless(model: Module) -> Iterator[None]:
    """Restore, bit by bit, all that a training step may change.

    That is weights, buffers, gradients, what modules keep in their
    attributes (modes, counters, hooks, objects, generators), the random
    generators of all libraries and the cache of autocast. Inside, parameters
    have no gradients, and buffers and attributes are copies.

    Args:
        model (Module): The model, without DDP and the like around it.
    """
    rng = capture_rng()
    modules = [_KeptModule(one) for one in model.modules()]
    tensors = [
        _KeptTensor(one)
        for one in dict.fromkeys([*model.parameters(), *_scripted(model)])
    ]
    try:
        for one in model.parameters():
            one.grad = None
        copies = OwnCopies(model)
        for module in modules:
            module.use(copies)
        yield
    finally:
        for module in modules:
            module.restore()
        for tensor in tensors:
            tensor.restore()
        torch.clear_autocast_cache()
        restore_rng(rng)


def _scripted(model: Module) -> Iterator[Tensor]:
    """Buffers of modules that torch does not let work on copies."""
    for module in model.modules():
        if isinstance(module, ScriptModule):
            yield from module.buffers(recurse=False)


class _KeptModule:
    """The attributes of a module, as they were."""

    def __init__(self, module: Module) -> None:
        self._is_scripted = isinstance(module, ScriptModule)
        self._attributes = vars(module)
        self._kept = dict(self._attributes)
        self._contents = {
            name: value.copy()
            for name, value in self._kept.items()
            if name in _OF_TORCH and isinstance(value, (dict, set))
        }

    def use(self, copies: OwnCopies) -> None:
        """Let the module work on copies of what it has."""
        if self._is_scripted:
            return
        buffers: dict[str, Any] = self._attributes['_buffers']
        for name, buffer in buffers.items():
            buffers[name] = copies.of(buffer)
        for name, value in self._kept.items():
            if name not in _OF_TORCH:
                self._attributes[name] = copies.of(value)

    def restore(self) -> None:
        self._attributes.clear()
        self._attributes.update(self._kept)
        for name, content in self._contents.items():
            self._kept[name].clear()
            self._kept[name].update(content)


class _KeptTensor:
    """A parameter or buffer as it was."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._grad = tensor.grad
        self._requires_grad = tensor.requires_grad
        # The memory of an accelerator is short.
        values = tensor.detach()
        is_host = values.device.type == 'cpu'
        self._values = values.clone() if is_host else values.cpu()

    def restore(self) -> None:
        # By `data`: nobody is to see that it was written to.
        self._tensor.data.copy_(self._values)
        self._tensor.requires_grad_(self._requires_grad)
        self._tensor.grad = self._grad
