"""What is this parameter called in the model?"""

from __future__ import annotations

from typing import cast
from weakref import WeakSet

from mmengine.model import is_model_wrapper
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer


class ParameterNames:
    """Names of an optimizer's parameters, as ``model.named_parameters()``.

    An optimizer does not know names, so they are learned from each model that
    trains with it. Until then a parameter is called by its place.

    Args:
        optimizer (Optimizer): The optimizer.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._names: dict[int, str] = {}
        self._models: WeakSet[Module] = WeakSet()

    def learn(self, model: Module) -> bool:
        """Learn the names in a model; False if it was known already."""
        if model in self._models:
            return False
        self._models.add(model)
        for name, param in unwrap(model).named_parameters():
            self._names.setdefault(id(param), clean_name(name))
        return True

    def __getitem__(self, param: Tensor) -> str:
        return self._names.get(id(param)) or self._place(param)

    def all(self) -> list[str]:
        """Names of all parameters of the optimizer."""
        return [
            self[param]
            for group in self._optimizer.param_groups
            for param in group['params']
        ]

    def parameters(self) -> list[Tensor]:
        """Those of the optimizer, and of all models it trains."""
        held = [g['params'] for g in self._optimizer.param_groups]
        held += [list(model.parameters()) for model in self._models]
        return list({id(p): p for params in held for p in params}.values())

    def _place(self, param: Tensor) -> str:
        for i, group in enumerate(self._optimizer.param_groups):
            for j, candidate in enumerate(group['params']):
                if candidate is param:
                    return f'param_groups[{i}].params[{j}]'
        return 'a parameter that has left the optimizer'


def clean_name(name: str) -> str:
    """A name without what FSDP puts into it."""
    return name.replace('_fsdp_wrapped_module.', '')


def unwrap(model: Module) -> Module:
    """The user's own model inside DDP-like and compiled wrappers."""
    while is_model_wrapper(model) or hasattr(model, '_orig_mod'):
        inner = model.module if is_model_wrapper(model) else model._orig_mod
        model = cast(Module, inner)
    return model


def first_parameter(optimizer: Optimizer) -> Tensor:
    """Any parameter of an optimizer; its first groups may be empty."""
    for group in optimizer.param_groups:
        for param in group['params']:
            return param
    raise ValueError('The optimizer has no parameters in any of its groups.')
