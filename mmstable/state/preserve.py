"""Let a model run once more, and restore all that it changes.

Used by whatever has to repeat a training step: forensics and the guard.
"""

from __future__ import annotations

import copy
import logging
import random
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from mmengine.runner import Runner
from torch import Tensor
from torch.jit import ScriptModule
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from mmstable.state.rng import capture_rng, restore_rng

_DICTS = (dict, OrderedDict)
_SEQUENCES = (list, tuple, set, deque)
_VALUES = (
    np.ndarray,
    np.random.RandomState,
    np.random.Generator,
    random.Random,
)
# They are no part of a model, even if one holds them.
_SHARED = (
    *(type, ModuleType, FunctionType, MethodType, partial, logging.Logger),
    *(Runner, Optimizer, DataLoader, Dataset),
)


class StateCopier:
    """Copies things once, so that what is shared stays shared.

    Modules and parameters are not copied, wherever they are referred to.

    Args:
        model (Module): The model.
    """

    def __init__(self, model: Module) -> None:
        kept = [*model.modules(), *model.parameters()]
        self._copies: dict[int, Any] = {id(one): one for one in kept}
        # An id means nothing when its object is gone.
        self._originals: list[Any] = kept
        # Classes of what can neither be copied nor rewound: iterators,
        # files, and whatever releases a resource when its copy is deleted.
        self.streams: set[str] = set()

    def of(self, value: Any) -> Any:
        """The copy of something; the thing itself if it has none."""
        if id(value) not in self._copies:
            self._originals.append(value)
            self._copies[id(value)] = self._copy(value)
        return self._copies[id(value)]

    def _copy(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            copied = value.detach().clone()
            return copied.requires_grad_() if value.requires_grad else copied
        if isinstance(value, torch.Generator):
            other = torch.Generator(value.device)
            other.set_state(value.get_state())
            return other
        if isinstance(value, _VALUES):
            return copy.deepcopy(value)
        if type(value) in _DICTS:
            return type(value)((k, self.of(v)) for k, v in value.items())
        if type(value) in _SEQUENCES:
            items = map(self.of, value)
            if isinstance(value, deque):
                return deque(items, value.maxlen)
            return type(value)(items)
        if isinstance(value, _SHARED):
            return value
        has_table = hasattr(value, '__dict__')
        if hasattr(type(value), '__del__') or (
            isinstance(value, Iterator) and not has_table
        ):
            self.streams.add(type(value).__name__)
            return value
        return self._copy_object(value) if has_table else value

    def _copy_object(self, value: Any) -> Any:
        try:
            copied = copy.copy(value)
        except Exception:
            return value
        if copied is value or type(copied) is not type(value):
            return value
        # Ahead of what it holds: that may refer to it.
        self._copies[id(value)] = copied
        for name, one in list(vars(copied).items()):
            vars(copied)[name] = self.of(one)
        return copied


# What torch keeps in every module. Handles of hooks refer to these very
# containers, so that their content is restored; all else is replaced by
# copies.
_OF_TORCH = frozenset(vars(Module()))


@contextmanager
def preserve_state(model: Module) -> Iterator[set[str]]:
    """Restore, bit by bit, all that a training step may change.

    That is weights, buffers, gradients, what modules keep in their
    attributes (modes, counters, hooks, objects, generators), the random
    generators of all libraries and the cache of autocast. Inside, parameters
    have no gradients, and buffers and attributes are copies.

    Args:
        model (Module): The model, without DDP and the like around it.

    Yields:
        set[str]: Classes of what the model holds and cannot be restored,
        such as iterators.
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
        copies = StateCopier(model)
        for module in modules:
            module.use(copies)
        yield copies.streams
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

    def use(self, copies: StateCopier) -> None:
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
        # By `data`: its version must not change.
        self._tensor.data.copy_(self._values)
        self._tensor.requires_grad_(self._requires_grad)
        self._tensor.grad = self._grad


def fingerprint(value: Any, seen: set[int] | None = None) -> Any:
    """A value that differs if something was changed in place.

    A tensor counts by how often it was written to, so that one which takes
    the place of another, such as a kept feature map, looks the same.

    Args:
        value (Any): Attributes of a module, a batch, or parts of these.
        seen (set[int], optional): Ids of objects on the way here. Defaults
            to None.
    """
    seen = set() if seen is None else seen
    if isinstance(value, Tensor):
        return None if value.is_inference() else value._version
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return repr(value.get_state())
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.dtype != object else None
    if id(value) in seen or isinstance(value, (Module, *_SHARED)):
        return None
    seen = seen | {id(value)}
    if type(value) in _DICTS:
        return [(k, fingerprint(v, seen)) for k, v in value.items()]
    if type(value) in _SEQUENCES:
        return [fingerprint(one, seen) for one in value]
    return fingerprint(vars(value), seen) if hasattr(value, '__dict__') else 0


def own_attributes(model: Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """What modules keep besides torch's own: table, name and value."""
    for module in model.modules():
        table = vars(module)
        for name, value in table.items():
            if name not in _OF_TORCH:
                yield table, name, value


def can_run_uncompiled() -> bool:
    """Whether this torch can run compiled parts as they were written."""
    return hasattr(torch.compiler, 'set_stance')


def uncompiled() -> Any:
    """Run compiled parts as they were written, where torch can."""
    if not can_run_uncompiled():
        return nullcontext()
    return torch.compiler.set_stance('force_eager')
