"""Copies of what a model keeps besides its modules and weights."""

from __future__ import annotations

import copy
import logging
import random
from collections import OrderedDict, deque
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from mmengine.runner import Runner
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

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


class OwnCopies:
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
        if hasattr(value, '__dict__') and not isinstance(value, _SHARED):
            return self._copy_object(value)
        return value

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
