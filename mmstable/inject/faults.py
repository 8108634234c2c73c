"""The faults that can be injected.

A fault is a frozen dataclass whose fields are its settings.
:mod:`mmstable.inject.plan` has their names in a config.
"""

from __future__ import annotations

import math
import os
import re
import signal as signals
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, ClassVar

import torch
from mmengine.utils import apply_to
from torch import Tensor, is_tensor
from torch.nn import Module

from mmstable import settings
from mmstable.errors import ConfigError, InjectedError
from mmstable.optim.grad_health import stored_values


@dataclass
class Scene:
    """The objects that a fault can change, in the iteration it is due in.

    Args:
        model (Module): The user's model, without wrappers.
        wrappers (Mapping): The optimizer wrappers by name.
        handles (list): Handles of all hooks, to remove them.
        report (Callable): Reports target and value right before the fault
            acts; call it from the training thread.
        note (Callable): Notes target and value from any thread, to be
            reported after the iteration.
    """

    model: Module
    wrappers: Mapping[str, Any]
    handles: list[Any]
    report: Callable[[str, str], None]
    note: Callable[[str, str], None]

    def before_forward(self, act: Callable[[tuple, dict], Any]) -> None:
        """Act once, on the arguments of the next forward pass."""

        def hook(module: Module, args: tuple, kwargs: dict) -> Any:
            return self._once(handle, act, args, kwargs)

        handle = self.model.register_forward_pre_hook(hook, with_kwargs=True)
        self.handles.append(handle)

    def after_loss(self, act: Callable[[Any], Any]) -> None:
        """Act once, on the output of the next forward pass for losses."""

        def hook(module: Module, args: tuple, kwargs: dict, out: Any) -> Any:
            if kwargs.get('mode', 'loss') != 'loss':
                # Some models compute features before they compute losses.
                return out
            return self._once(handle, act, out)

        handle = self.model.register_forward_hook(hook, with_kwargs=True)
        self.handles.append(handle)

    def _once(self, handle: Any, act: Callable, *args: Any) -> Any:
        handle.remove()
        try:
            return act(*args)
        except BaseException:
            # mmengine's own loops call no hook when an iteration fails.
            disarm(self.handles)
            raise


def disarm(handles: list[Any]) -> None:
    """Remove all hooks."""
    while handles:
        handles.pop().remove()


class Action(ABC):
    """A fault with its settings."""

    # Whether a resumed run would repeat the iteration, and the fault.
    ends_process: ClassVar[bool] = False

    def check(self, model: Module) -> None:  # noqa: B027
        """Raise a ValueError if the model lacks the target."""

    @abstractmethod
    def arm(self, scene: Scene) -> None:
        """Act now, or as soon as this iteration gets there."""


# torch before 2.5 has no such error for all devices.
OutOfMemoryError: type[RuntimeError] = getattr(
    torch, 'OutOfMemoryError', torch.cuda.OutOfMemoryError
)


class _Accident(Action):
    """A fault that happens once, and not again in a resumed run."""

    ends_process = True

    where: str
    # Recorded in the event.
    value: Any

    def arm(self, scene: Scene) -> None:
        """Let it happen now or with the next forward pass."""
        if self.where == 'data':
            self._happen(scene)
        else:
            scene.before_forward(lambda args, kwargs: self._happen(scene))

    def _happen(self, scene: Scene) -> None:
        # Before the fault, which may end the process.
        scene.report(self.where, str(self.value))
        self.happen()

    @abstractmethod
    def happen(self) -> None:
        """Cause the fault."""


@dataclass(frozen=True)
class OutOfMemory(_Accident):
    """The error that torch raises when the device has no memory left."""

    where = 'forward'
    value = OutOfMemoryError.__name__

    def happen(self) -> None:
        """Raise it."""
        raise OutOfMemoryError(
            'out of memory (injected by FaultInjectorHook; there is as much '
            'memory as before)'
        )


@dataclass(frozen=True)
class Hang(_Accident):
    """A pass, or its data, that takes very long. Ctrl-C ends it.

    Args:
        seconds (float): How long.
        where (str): 'forward', or 'data' for before the iteration starts.
            Defaults to 'forward'.
    """

    seconds: float
    where: str = 'forward'
    value = property(lambda self: self.seconds)

    def happen(self) -> None:
        """Sleep."""
        time.sleep(self.seconds)


@dataclass(frozen=True)
class Signal(_Accident):
    """A signal to this process, as from a scheduler.

    Args:
        signal (str): Its name, e.g. 'SIGTERM'.
        where (str): As in :class:`Hang`. Defaults to 'forward'.
    """

    signal: str
    where: str = 'forward'
    value = property(lambda self: self.signal)

    def happen(self) -> None:
        """Send it."""
        os.kill(os.getpid(), signals.Signals[self.signal])


@dataclass(frozen=True)
class Failure(_Accident):
    """An exception of class :class:`mmstable.errors.InjectedError`.

    Args:
        message (str): Its text. Defaults to 'injected by FaultInjectorHook'.
        where (str): As in :class:`Hang`. Defaults to 'forward'.
    """

    message: str = 'injected by FaultInjectorHook'
    where: str = 'forward'
    value = property(lambda self: self.message)

    def happen(self) -> None:
        """Raise it."""
        raise InjectedError(self.message)


def name_of(value: float) -> str:
    """Name a value as the rest of mmstable does: 'NaN', 'Inf', '1000.0'."""
    if math.isnan(value):
        return 'NaN'
    return 'Inf' if math.isinf(value) else str(value)


@torch.no_grad()
def spoil_first(tensor: Tensor, value: float) -> None:
    """Put ``value`` into the first place of a tensor."""
    tensor[(0,) * tensor.dim()] = value


class _NamedTensors(Action):
    """A fault in tensors of the model, chosen by one of its settings.

    The setting is a name, or a regular expression for whole names; None
    stands for all.
    """

    setting: ClassVar[str] = 'param'

    def named(self, model: Module) -> Mapping[str, Tensor]:
        """Return the tensors to choose from."""
        return dict(model.named_parameters())

    def chosen(self, model: Module) -> Mapping[str, Tensor]:
        """Return the tensors to spoil."""
        named = self.named(model)
        wanted = getattr(self, self.setting)
        if wanted is None:
            return named
        if wanted in named:
            return {wanted: named[wanted]}
        matching = {
            name: tensor
            for name, tensor in named.items()
            if re.fullmatch(wanted, name)
        }
        if not matching:
            raise ValueError(settings.no_match(self.setting, wanted, named))
        return matching

    def check(self, model: Module) -> None:
        """Raise an error if no tensor has that name."""
        self.chosen(model)


class _GradientFault(_NamedTensors):
    """A fault in gradients as the backward pass makes them.

    Each is changed once in the iteration, before it is added to those of
    earlier iterations and before ranks exchange it.
    """

    def arm(self, scene: Scene) -> None:
        """Hook the parameters."""
        for name, param in self.chosen(scene.model).items():
            # A frozen one gets no gradient that could be bad.
            if param.requires_grad:
                hook = _once(partial(self.spoil, scene, name))
                scene.handles.append(param.register_hook(hook))

    @abstractmethod
    def spoil(self, scene: Scene, name: str, grad: Tensor) -> Tensor:
        """Return the gradient to continue with.

        It reports by ``scene.note``: autograd has threads of its own.
        """


def _once(act: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Wrap a hook so that it acts on the first gradient only."""
    first = iter([True])
    return lambda grad: act(grad) if next(first, False) else grad


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

    def spoil(self, scene: Scene, name: str, grad: Tensor) -> Tensor:
        """Return a copy with the value in it."""
        grad = grad.clone()
        values = stored_values(grad)
        if values.numel():
            spoil_first(values, self.value)
            scene.note(name, name_of(self.value))
        return grad


@dataclass(frozen=True)
class GradientSpike(_GradientFault):
    """Gradients that are far too large, but finite.

    Args:
        factor (float): The factor. Defaults to 1000.0.
        param (str, optional): As in :class:`SpoiledGradient`. Defaults to
            None, which means all parameters.
    """

    factor: float = 1000.0
    param: str | None = None

    def spoil(self, scene: Scene, name: str, grad: Tensor) -> Tensor:
        """Return the gradient, multiplied."""
        scene.note(name if self.param else 'all', name_of(self.factor))
        return grad * self.factor


class _Poison(_NamedTensors):
    """A fault in state that lasts from iteration to iteration."""

    value: float

    def arm(self, scene: Scene) -> None:
        """Poison at once."""
        for name, tensor in self.targets(scene):
            scene.report(name, name_of(self.value))
            spoil_first(tensor, self.value)

    def targets(self, scene: Scene) -> Iterable[tuple[str, Tensor]]:
        """Return the tensors to poison, with names for the record."""
        return self.chosen(scene.model).items()


@dataclass(frozen=True)
class PoisonedWeight(_Poison):
    """A weight that is not finite, before the iteration.

    Args:
        value (float): NaN or Inf.
        param (str): As in :class:`SpoiledGradient`.
    """

    value: float
    param: str


@dataclass(frozen=True)
class PoisonedBuffer(_Poison):
    """A buffer, such as a running mean, that is not finite.

    Args:
        value (float): NaN or Inf.
        buffer (str): The name in ``model.named_buffers()`` of a
            floating-point buffer, or a regular expression for whole names.
    """

    value: float
    buffer: str
    setting: ClassVar[str] = 'buffer'

    def named(self, model: Module) -> Mapping[str, Tensor]:
        """Return the buffers that can hold such a value."""
        return {
            name: buffer
            for name, buffer in model.named_buffers()
            if buffer.is_floating_point() and buffer.numel()
        }


@dataclass(frozen=True)
class PoisonedState(_Poison):
    """An optimizer's state of a parameter that is not finite.

    Nothing happens before the optimizer's first step, which makes its state.

    Args:
        value (float): NaN or Inf.
        param (str): As in :class:`SpoiledGradient`.
        entry (str, optional): The entry of the state, e.g. 'exp_avg'.
            Defaults to None, which means the first as large as the
            parameter.
    """

    value: float
    param: str
    entry: str | None = None

    def targets(self, scene: Scene) -> Iterator[tuple[str, Tensor]]:
        """Return one entry of the state of each parameter."""
        for name, param in self.chosen(scene.model).items():
            for wrapper in scene.wrappers.values():
                entries = wrapper.optimizer.state.get(param, {})
                state = {
                    key: value
                    for key, value in entries.items()
                    if is_tensor(value) and value.shape == param.shape
                }
                if not state:
                    continue
                entry = next(iter(state)) if self.entry is None else self.entry
                _require('entry', entry, state)
                yield f'{name}.{entry}', state[entry]


def _require(setting: str, name: str, known: Collection[str]) -> None:
    """Raise an error for a name that only the iteration shows to be wrong."""
    if name not in known:
        raise ConfigError(
            f'FaultInjectorHook: {settings.no_match(setting, name, known)}'
        )


@dataclass(frozen=True)
class SpoiledInput(Action):
    """A sample that is not finite, as from a broken file.

    The value is set after the data preprocessor, which converts images to
    floating point, and in a copy: a dataset that returns the same tensor
    again is not changed.

    Args:
        value (float): NaN or Inf.
        input (str, optional): The argument of ``model.forward`` to look in.
            Defaults to None, which means the first that holds a
            floating-point tensor.
    """

    value: float
    input: str | None = None

    def arm(self, scene: Scene) -> None:
        """Wait for the arguments."""

        def spoil(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            given = {**{str(i): arg for i, arg in enumerate(args)}, **kwargs}
            chosen = given
            if self.input is not None:
                _require('input', self.input, given)
                chosen = {self.input: given[self.input]}
            found = _spoil_tensor(chosen, '', self.value)
            value = name_of(self.value)
            if found is None:
                raise ConfigError(
                    'FaultInjectorHook: the model is given no floating-point '
                    f'tensor in {", ".join(given)} that could hold {value}.'
                )
            scene.report(found[0][1:], value)
            changed = {**given, **found[1]}
            args = tuple(changed.pop(str(i)) for i in range(len(args)))
            return args, changed

        scene.before_forward(spoil)


def _spoil_tensor(
    data: Any, path: str, value: float
) -> tuple[str, Any] | None:
    """Spoil the first sample of the first floating-point tensor.

    Returns:
        tuple[str, Any] or None: Where the tensor was, and a copy of the data
        with the spoiled one; None if there is no such tensor.
    """
    if is_tensor(data):
        if not (data.is_floating_point() and data.numel()):
            return None
        bad = data.clone()
        (bad[0] if bad.dim() > 0 else bad).fill_(value)
        return path, bad
    if isinstance(data, Mapping):
        for key, item in data.items():
            found = _spoil_tensor(item, f'{path}.{key}', value)
            if found is not None:
                rebuilt: Any = {**data, key: found[1]}
                return found[0], type(data)(rebuilt)  # type: ignore[call-arg]
    elif isinstance(data, (list, tuple)):
        for index, item in enumerate(data):
            found = _spoil_tensor(item, f'{path}[{index}]', value)
            if found is not None:
                parts = [*data[:index], found[1], *data[index + 1 :]]
                # A named tuple takes its fields one by one.
                make = getattr(type(data), '_make', type(data))
                return found[0], make(parts)
    return None


# mmengine's `parse_losses` sums the terms with this in their name.
_LOSS = 'loss'


@dataclass(frozen=True)
class SpoiledLoss(Action):
    """Losses that are not finite, or far too large.

    They are multiplied, so that their gradients are bad as well.

    Args:
        factor (float): The factor. Defaults to 1000.0.
        term (str, optional): The only entry of the loss dictionary to spoil,
            e.g. 'loss_bbox'. Defaults to None, which means all.
    """

    factor: float = 1000.0
    term: str | None = None

    def arm(self, scene: Scene) -> None:
        """Wait for the losses of the iteration's first forward pass."""
        scene.after_loss(partial(self._spoil, scene))

    def _spoil(self, scene: Scene, output: Any) -> Any:
        if is_tensor(output) and self.term is None:
            scene.report(_LOSS, name_of(self.factor))
            return self._change(output)
        if not isinstance(output, Mapping):
            raise ConfigError(
                'FaultInjectorHook: the model returns no dict of losses that '
                f'one could be spoiled in, but {type(output).__name__}.'
            )
        if self.term is not None:
            _require('term', self.term, output)
        changed = dict(output)
        for term in output:
            if term == self.term or (self.term is None and _LOSS in term):
                changed[term] = apply_to(output[term], is_tensor, self._change)
                scene.report(term, name_of(self.factor))
        return changed

    def _change(self, loss: Tensor) -> Tensor:
        return loss * self.factor
