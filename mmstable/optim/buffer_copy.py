"""Running statistics as they were before a forward pass."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Module


class BufferCopy:
    """A copy of all buffers of some models, to be put back.

    Its memory is used again when it is taken anew.
    """

    def __init__(self) -> None:
        # To be unset when nothing is to be put back.
        self.is_taken = False
        self._owners: list[tuple[Module, str]] = []
        self._live: list[Tensor | None] = []
        self._copies: list[Tensor | None] = []
        # What to copy if nothing but values has changed.
        self._ids: list[int] | None = None
        self._sources: list[Tensor] = []
        self._targets: list[Tensor] = []
        self._shapes: list[torch.Size] = []

    def take(self, modules: Iterable[Module]) -> None:
        """Copy the buffers that these modules, not their parts, own."""
        self.is_taken = True
        owners: list[tuple[Module, str]] = []
        live: list[Tensor | None] = []
        for module in modules:
            for name, buffer in module._buffers.items():
                owners.append((module, name))
                live.append(buffer)
        self._owners = owners
        if not live:
            return
        # The tensors of these ids are kept, so no other one can get an id.
        is_known = list(map(id, live)) == self._ids and self._shapes == [
            buffer.shape for buffer in self._sources
        ]
        if is_known:
            _copy(self._sources, self._targets)
        else:
            self._copy_anew(live)

    def _copy_anew(self, live: list[Tensor | None]) -> None:
        pairs = [
            (buffer, None if buffer is None else buffer.detach().clone())
            for buffer in live
        ]
        self._live = live
        self._copies = [copy for _, copy in pairs]
        strided = [
            (buffer, copy)
            for buffer, copy in pairs
            if buffer is not None and copy is not None
            # torch cannot write to some of the others.
            if copy.layout is torch.strided
        ]
        self._sources = [buffer for buffer, _ in strided]
        self._targets = [copy for _, copy in strided]
        self._shapes = [buffer.shape for buffer in self._sources]
        is_all = len(strided) == sum(one is not None for one in live)
        self._ids = list(map(id, live)) if is_all else None

    def put_back(self) -> None:
        """Give the buffers their values back; once for each copy."""
        if not self.is_taken:
            return
        self.is_taken = False
        sources, targets = [], []
        for (module, name), live, copy in zip(
            self._owners, self._live, self._copies
        ):
            value = live
            if live is not None and copy is not None:
                if can_write(live, copy):
                    sources.append(copy)
                    targets.append(live)
                else:
                    value = copy.clone()
            # A forward pass may have put something else in its place.
            module._buffers[name] = value
        _copy(sources, targets)


def can_write(target: Tensor, source: Tensor) -> bool:
    """Whether one tensor can take the values of another in place."""
    return (
        target.shape == source.shape
        and target.dtype == source.dtype
        and target.layout == source.layout == torch.strided
        and not target.is_inference()
        # An expanded tensor has one value in many places.
        and all(
            step != 0 or size < 2
            for step, size in zip(target.stride(), target.shape)
        )
    )


def _copy(sources: list[Tensor], targets: list[Tensor]) -> None:
    if sources:
        with torch.no_grad():
            torch._foreach_copy_(targets, sources)
