"""The largest activations and gradients of one iteration, module by module."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from mmstable.forensics.headroom_underflow import SmallValues, count_small
from mmstable.optim.parameter_names import clean_name

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Tensors of one output that are looked at.
_MOST_TENSORS = 16

OUTPUT, INPUT, GRADIENT = 'output', 'input', 'gradient'


class Place(NamedTuple):
    """Where a value was seen, and in which range it has to stay.

    Args:
        module (str): Name of the module.
        kind (str): 'output' or 'gradient' of that; 'input' if the module
            casts its input to a shorter type.
        dtype (str): The type, as 'float16'.
    """

    module: str
    kind: str
    dtype: str

    @property
    def range_end(self) -> float:
        """The largest finite number there."""
        return torch.finfo(getattr(torch, self.dtype)).max


class HeadroomProbe:
    """Watches all modules of a model until it is removed.

    One operation is done for each tensor that a module gives, and one for
    its gradient; nothing is read by the host before :meth:`read`. A part that
    activation checkpointing runs a second time is counted once.

    Args:
        model (Module): The model, outside of any wrapper.
    """

    def __init__(self, model: Module) -> None:
        self._peaks: list[tuple[Place, Tensor, Tensor]] = []
        self._small: list[tuple[str, int, int, Tensor]] = []
        # A container gives what its last module gave.
        self._seen: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._handles = [
            module.register_forward_hook(
                partial(self._after_forward, _clean(name))
            )
            for name, module in model.named_modules()
            # What the model itself gives are losses.
            if name and not isinstance(module, torch.jit.ScriptModule)
        ]

    def remove(self) -> None:
        """End watching."""
        while self._handles:
            self._handles.pop().remove()
        self._seen.clear()

    def read(self) -> tuple[dict[Place, float], list[SmallValues]]:
        """The largest values, and the smallest gradients in fp16.

        Returns:
            tuple: Places to the largest absolute value that was seen there,
            which is infinity if there was a NaN; and the small values.
        """
        peaks: dict[Place, float] = {}
        lows = _read([low for _, low, _ in self._peaks])
        highs = _read([high for _, _, high in self._peaks])
        for (place, _, _), low, high in zip(self._peaks, lows, highs):
            peak = math.inf if math.isnan(low) else max(-low, high)
            peaks[place] = max(peak, peaks.get(place, 0.0))
        counts = _read([found for *_, found in self._small])
        small = [
            SmallValues(name, size, total, zeros, ones, up_to_3 - zeros - ones)
            for (name, size, total, _), (zeros, ones, up_to_3) in zip(
                self._small, counts
            )
        ]
        return peaks, small

    def _after_forward(
        self, name: str, module: Module, args: Any, output: Any
    ) -> None:
        is_repeated = _in_backward()
        tensors = list(_tensors(output))[:_MOST_TENSORS]
        for tensor in tensors:
            if self._was_seen(tensor):
                continue
            if tensor.requires_grad:
                tensor.register_hook(partial(self._after_backward, name))
            if not is_repeated:
                self._note(name, OUTPUT, tensor, tensor.dtype)
        if tensors and not is_repeated and _is_leaf(module):
            self._note_cast(name, args, tensors[0])

    def _note_cast(self, name: str, args: Any, output: Tensor) -> None:
        """Note an input that autocast had to make shorter."""
        for tensor in list(_tensors(args))[:1]:
            if _bits(output) < _bits(tensor):
                self._note(name, INPUT, tensor, output.dtype)

    def _after_backward(self, name: str, grad: Tensor) -> None:
        if not _can_be_read(grad):
            return
        self._note(name, GRADIENT, grad, grad.dtype)
        if grad.dtype is torch.float16:
            with torch.no_grad():
                counts, total = count_small(grad)
            self._small.append((name, grad.numel(), total, counts))

    def _note(
        self, name: str, kind: str, tensor: Tensor, dtype: torch.dtype
    ) -> None:
        place = Place(name, kind, str(dtype).replace('torch.', ''))
        with torch.no_grad():
            low, high = torch.aminmax(tensor)
        self._peaks.append((place, low, high))

    def _was_seen(self, tensor: Tensor) -> bool:
        """Whether it is the same tensor with the same values."""
        known, version = self._seen.get(id(tensor), (None, -1))
        if (
            known is not None
            and known() is tensor
            and tensor._version == version
        ):
            return True
        self._seen[id(tensor)] = (weakref.ref(tensor), tensor._version)
        return False


def _clean(name: str) -> str:
    return clean_name(f'{name}.').rstrip('.')


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if _can_be_read(output):
            yield output
    elif isinstance(output, Mapping):
        for one in output.values():
            yield from _tensors(one)
    elif isinstance(output, (list, tuple)):
        for one in output:
            yield from _tensors(one)


def _can_be_read(tensor: Tensor) -> bool:
    # Of a distributed tensor, that would be a collective operation.
    return (
        type(tensor) is Tensor
        and tensor.dtype in _DTYPES
        and tensor.layout is torch.strided
        and tensor.numel() > 0
        and not tensor.is_meta
        and not tensor.is_inference()
    )


def _bits(tensor: Tensor) -> int:
    return torch.finfo(tensor.dtype).bits


def _is_leaf(module: Module) -> bool:
    return next(module.children(), None) is None


def _in_backward() -> bool:
    """Whether a backward pass is under way, which runs modules again."""
    return torch._C._current_graph_task_id() != -1


def _read(values: list[Tensor]) -> list[Any]:
    """Read many small tensors in as few transfers as possible."""
    groups: dict[Any, list[int]] = {}
    for index, value in enumerate(values):
        groups.setdefault((value.device, value.dtype), []).append(index)
    found: list[Any] = [None] * len(values)
    for indices in groups.values():
        read = torch.stack([values[index] for index in indices]).tolist()
        for index, value in zip(indices, read):
            found[index] = value
    return found
