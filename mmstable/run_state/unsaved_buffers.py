"""Buffers that no checkpoint has, as they were when the run began."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import Module

from mmstable.events import Culprit
from mmstable.optim.buffer_copy import can_write


class UnsavedBuffers:
    """Copies of the buffers that are not persistent.

    A resumed run has them as the model builds them. A rollback to a
    checkpoint gives those that are not finite the values from the start, and
    leaves the others as they are.

    Args:
        model (Module): The model before anything is loaded into it.
    """

    def __init__(self, model: Module) -> None:
        self._copies = {
            name: buffer.detach().cpu().clone()
            for name, buffer in _unsaved(model)
        }

    def heal(self, model: Module, culprits: Iterable[Culprit]) -> None:
        """Restore the ones among the culprits.

        Args:
            model (Module): The same model.
            culprits (Iterable[Culprit]): Entries that are not finite.
        """
        bad = {culprit.name for culprit in culprits}
        with torch.no_grad():
            for name, buffer in _unsaved(model):
                copy = self._copies.get(name)
                if (
                    f'state_dict.{name}' in bad
                    and copy is not None
                    and can_write(buffer, copy)
                ):
                    buffer.copy_(copy)


def _unsaved(model: Module) -> Iterator[tuple[str, Tensor]]:
    names = {
        f'{path}.{leaf}' if path else leaf
        for path, module in model.named_modules()
        for leaf in module._non_persistent_buffers_set
    }
    for name, buffer in model.named_buffers():
        if name in names:
            yield name, buffer
