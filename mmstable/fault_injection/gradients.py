"""Faults in the gradients of named parameters."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor
from torch.nn import Module, Parameter

from mmstable.fault_injection.action import Action, Scene
from mmstable.fault_injection.names import choose
from mmstable.fault_injection.values import check_factor, name_of, spoil_first
from mmstable.numerics.grad_health import stored_values
from mmstable.settings import pattern


class _GradientFault(Action):
    """Changes gradients as the backward pass makes them.

    Each is changed once in the iteration, before it is added to those of
    earlier iterations and before ranks exchange it.
    """

    param: str | None

    def check(self, model: Module) -> None:
        """Raise an error if no parameter has that name."""
        self._choose(model)

    def arm(self, scene: Scene) -> None:
        """Hook the parameters."""
        for name, param in self._choose(scene.model).items():
            # A frozen one gets no gradient that could be bad.
            if param.requires_grad:
                hook = _OneGradient(self, name, scene)
                scene.handles.append(param.register_hook(hook))

    def _choose(self, model: Module) -> dict[str, Parameter]:
        params = dict(model.named_parameters())
        if self.param is None:
            return params
        names = choose('param', self.param, params)
        return {name: params[name] for name in names}

    @abstractmethod
    def spoil(self, name: str, grad: Tensor, scene: Scene) -> Tensor:
        """The gradient to go on with."""


class _OneGradient:
    """The hook of one parameter, which acts once."""

    def __init__(
        self, action: _GradientFault, name: str, scene: Scene
    ) -> None:
        self._action, self._name, self._scene = action, name, scene
        self._is_done = False

    def __call__(self, grad: Tensor) -> Tensor:
        if self._is_done:
            return grad
        self._is_done = True
        return self._action.spoil(self._name, grad, self._scene)


@dataclass(frozen=True)
class SpoiledGradient(_GradientFault):
    """A gradient with one value that is not finite.

    Args:
        value (float): NaN or Inf.
        param (str): The parameter's name in ``model.named_parameters()``, or
            a regular expression for whole names.
    """

    value: float
    param: str

    def __post_init__(self) -> None:
        pattern('', 'param', self.param)

    def spoil(self, name: str, grad: Tensor, scene: Scene) -> Tensor:
        """A copy with the value in it."""
        grad = grad.clone()
        values = stored_values(grad)
        if values.numel():
            spoil_first(values, self.value)
            # Not `tell`: autograd has threads of its own.
            scene.note(name, name_of(self.value))
        return grad


@dataclass(frozen=True)
class GradientSpike(_GradientFault):
    """Gradients that are far too large, but finite.

    Args:
        factor (float): What they are multiplied by. Defaults to 1000.0.
        param (str, optional): As in :class:`SpoiledGradient`. Defaults to
            None, which means all parameters.
    """

    factor: float = 1000.0
    param: str | None = None

    def __post_init__(self) -> None:
        check_factor(self.factor)
        if self.param is not None:
            pattern('', 'param', self.param)

    def spoil(self, name: str, grad: Tensor, scene: Scene) -> Tensor:
        """The gradient, multiplied."""
        scene.note(name if self.param else 'all', name_of(self.factor))
        return grad * self.factor
