"""Faults in what stays from iteration to iteration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, is_tensor
from torch.nn import Module

from mmstable.errors import ConfigError
from mmstable.fault_injection.action import Action, Scene
from mmstable.fault_injection.names import choose
from mmstable.fault_injection.values import name_of, spoil_first
from mmstable.settings import no_match, pattern, text


@dataclass(frozen=True)
class PoisonedWeight(Action):
    """A weight that is not finite, before the iteration.

    Args:
        value (float): NaN or Inf.
        param (str): The parameter's name in ``model.named_parameters()``, or
            a regular expression for whole names.
    """

    value: float
    param: str

    def __post_init__(self) -> None:
        pattern('', 'param', self.param)

    def check(self, model: Module) -> None:
        """Raise an error if no parameter has that name."""
        choose('param', self.param, dict(model.named_parameters()))

    def arm(self, scene: Scene) -> None:
        """Poison at once."""
        params = dict(scene.model.named_parameters())
        for name in choose('param', self.param, params):
            scene.tell(name, name_of(self.value))
            spoil_first(params[name], self.value)


@dataclass(frozen=True)
class PoisonedBuffer(Action):
    """A buffer, such as a running mean, that is not finite.

    Args:
        value (float): NaN or Inf.
        buffer (str): The name in ``model.named_buffers()`` of a
            floating-point buffer, or a regular expression for whole names.
    """

    value: float
    buffer: str

    def __post_init__(self) -> None:
        pattern('', 'buffer', self.buffer)

    def check(self, model: Module) -> None:
        """Raise an error if no buffer has that name."""
        choose('buffer', self.buffer, _float_buffers(model))

    def arm(self, scene: Scene) -> None:
        """Poison at once."""
        buffers = _float_buffers(scene.model)
        for name in choose('buffer', self.buffer, buffers):
            scene.tell(name, name_of(self.value))
            spoil_first(buffers[name], self.value)


@dataclass(frozen=True)
class PoisonedState(Action):
    """An optimizer's state of a parameter that is not finite.

    Nothing happens before the optimizer's first step, which makes its state.

    Args:
        value (float): NaN or Inf.
        param (str): As in :class:`PoisonedWeight`.
        entry (str, optional): The entry of the state, e.g. 'exp_avg'.
            Defaults to None, which means the first as large as the
            parameter.
    """

    value: float
    param: str
    entry: str | None = None

    def __post_init__(self) -> None:
        pattern('', 'param', self.param)
        if self.entry is not None:
            text('', 'entry', self.entry)

    def check(self, model: Module) -> None:
        """Raise an error if no parameter has that name."""
        choose('param', self.param, dict(model.named_parameters()))

    def arm(self, scene: Scene) -> None:
        """Poison at once."""
        params = dict(scene.model.named_parameters())
        for name in choose('param', self.param, params):
            for entry, tensor in self._entries(params[name], scene):
                scene.tell(f'{name}.{entry}', name_of(self.value))
                spoil_first(tensor, self.value)

    def _entries(
        self, param: Tensor, scene: Scene
    ) -> Iterator[tuple[str, Tensor]]:
        for wrapper in scene.wrappers.values():
            state = {
                key: value
                for key, value in wrapper.optimizer.state.get(
                    param, {}
                ).items()
                if is_tensor(value) and value.shape == param.shape
            }
            if self.entry is None:
                yield from list(state.items())[:1]
            elif self.entry in state:
                yield self.entry, state[self.entry]
            elif state:
                problem = no_match('entry', self.entry, state)
                raise ConfigError(f'FaultInjectorHook: {problem}')


def _float_buffers(model: Module) -> dict[str, Tensor]:
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if buffer.is_floating_point() and buffer.numel()
    }
