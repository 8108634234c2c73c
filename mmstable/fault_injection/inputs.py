"""Faults in what a model is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, is_tensor

from mmstable.errors import ConfigError
from mmstable.fault_injection.action import Action, Scene
from mmstable.fault_injection.values import name_of
from mmstable.settings import no_match, text


@dataclass(frozen=True)
class SpoiledInput(Action):
    """A sample that is not finite, as a broken file may give it.

    It is put in after the data preprocessor, which makes floating-point
    numbers of pictures, and into a copy: a data set that hands out the same
    tensor again stays as it is.

    Args:
        value (float): NaN or Inf.
        input (str, optional): The argument of ``model.forward`` to look in.
            Defaults to None, which means the first that holds a
            floating-point tensor.
    """

    value: float
    input: str | None = None

    def __post_init__(self) -> None:
        if self.input is not None:
            text('', 'input', self.input)

    def arm(self, scene: Scene) -> None:
        """Wait for the arguments."""

        def spoil(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            given = {**{str(i): arg for i, arg in enumerate(args)}, **kwargs}
            path, changed = self._spoil(given)
            scene.tell(path, name_of(self.value))
            args = tuple(changed.pop(str(i)) for i in range(len(args)))
            return args, changed

        scene.before_forward(spoil)

    def _spoil(self, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if self.input is not None and self.input not in given:
            raise ConfigError(
                f'FaultInjectorHook: {no_match("input", self.input, given)}'
            )
        for name, data in given.items():
            if self.input not in (None, name):
                continue
            for path, tensor in _float_tensors(data, name):
                bad = _spoil_sample(tensor, self.value)
                changed = _replace(data, tensor, bad)
                return path, {**given, name: changed}
        raise ConfigError(
            'FaultInjectorHook: the model is given no floating-point tensor '
            f'in {", ".join(given)} that could hold {name_of(self.value)}.'
        )


def _float_tensors(data: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    if is_tensor(data):
        if data.is_floating_point() and data.numel():
            yield path, data
    elif isinstance(data, Mapping):
        for key, item in data.items():
            yield from _float_tensors(item, f'{path}.{key}')
    elif isinstance(data, (list, tuple)):
        for index, item in enumerate(data):
            yield from _float_tensors(item, f'{path}[{index}]')


def _spoil_sample(tensor: Tensor, value: float) -> Tensor:
    """A copy whose first sample is bad from end to end."""
    bad = tensor.clone()
    (bad[0] if bad.dim() > 0 else bad).fill_(value)
    return bad


def _replace(data: Any, old: Tensor, new: Tensor) -> Any:
    """The same structure with another tensor in the place of one."""
    if data is old:
        return new
    if isinstance(data, Mapping):
        items = {key: _replace(item, old, new) for key, item in data.items()}
        return type(data)(items)  # type: ignore[call-arg]
    if isinstance(data, (list, tuple)):
        parts = [_replace(item, old, new) for item in data]
        # A named tuple takes its fields one by one.
        is_named = hasattr(data, '_fields')
        return type(data)(*parts) if is_named else type(data)(parts)
    return data
