"""How much do the outputs of each module take?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._pytree import tree_flatten


@dataclass
class ActivationMeter:
    """Bytes of outputs by module, and peaks of the device by phase.

    Args:
        device (torch.device): Where the model is.
        outputs (dict): Bytes by name of the module. Defaults to {}.
        peaks (dict): The most bytes of tensors by phase, if the device
            counts them. Defaults to {}.
    """

    device: torch.device
    outputs: dict[str, int] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def watch(self, model: Module) -> Iterator[None]:
        """Measure one forward pass.

        Args:
            model (Module): The model, without DDP and the like around it.
        """
        self.outputs.clear()
        self.peaks.clear()
        self._reset_peak()
        handles = [
            module.register_forward_hook(partial(self._add, name))
            for name, module in model.named_modules()
            # What only calls others gives what those gave.
            if name and not any(True for _ in module.children())
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def end_phase(self, name: str) -> None:
        """Note the peak of the phase that ends now.

        Args:
            name (str): What it is called.
        """
        read = getattr(self._module(), 'max_memory_allocated', None)
        if read is not None:
            self.peaks[name] = int(read(self.device))
            self._reset_peak()

    def largest(self, most: int) -> list[tuple[str, int]]:
        """The modules with the largest outputs, and their bytes.

        Args:
            most (int): How many.
        """
        ordered = sorted(self.outputs.items(), key=lambda one: -one[1])
        return ordered[:most]

    def _add(
        self, name: str, module: Module, inputs: Any, output: Any
    ) -> None:
        # In the backward pass a module only computes again.
        if torch._C._current_graph_task_id() != -1:
            return
        size = sum(
            leaf.numel() * leaf.element_size()
            for leaf in tree_flatten(output)[0]
            if isinstance(leaf, Tensor)
        )
        self.outputs[name] = self.outputs.get(name, 0) + size

    def _module(self) -> Any:
        return getattr(torch, self.device.type, None)

    def _reset_peak(self) -> None:
        reset = getattr(self._module(), 'reset_peak_memory_stats', None)
        if reset is not None:
            reset(self.device)
