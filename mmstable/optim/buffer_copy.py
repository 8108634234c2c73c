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
        known = len(live) == len(self._live) and all(
            new is old for new, old in zip(live, self._live)
        )
        copies: list[Tensor | None] = [None] * len(live)
        if known:
            copies = self._copies
        sources, targets = [], []
        for index, (buffer, copy) in enumerate(zip(live, copies)):
            if buffer is None:
                continue
            # What was copied once is cheap to check: nothing but its shape
            # can have changed.
            if copy is not None and _is_like(copy, buffer):
                sources.append(buffer)
                targets.append(copy)
            else:
                copies[index] = buffer.detach().clone()
        _copy(sources, targets)
        self._live, self._copies = live, copies

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


def _is_like(copy: Tensor, buffer: Tensor) -> bool:
    return copy.shape == buffer.shape and copy.layout is torch.strided


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
