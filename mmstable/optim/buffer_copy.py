"""Running statistics as they were before a forward pass."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Module

# From this size on a buffer is copied only if torch counts a change to it.
# Kernels that update statistics do not tell torch, but those are small;
# large buffers are tables that never change.
_LARGE = 2**16


class BufferCopy:
    """A copy of all buffers of some models, to be put back.

    It is filled again and again; buffers that cannot have changed since are
    not copied again.
    """

    def __init__(self) -> None:
        self.is_taken = False
        self._owners: list[tuple[Module, str]] = []
        self._live: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._versions: list[int] = []

    def take(self, modules: Iterable[Module]) -> None:
        """Copy the buffers that these modules, not their parts, own."""
        owners, live = _buffers_of(modules)
        if len(live) != len(self._live) or any(
            new is not old for new, old in zip(live, self._live)
        ):
            self._start_over(owners, live)
        else:
            self._refresh()
        self.is_taken = True

    def put_back(self) -> None:
        """Give the buffers their values back; once for each copy."""
        if not self.is_taken:
            return
        self.is_taken = False
        with torch.no_grad():
            _copy(self._copies, self._live)
        for (module, name), buffer in zip(self._owners, self._live):
            # A forward pass may have put a new tensor in its place.
            module._buffers[name] = buffer
        self._versions = [buffer._version for buffer in self._live]

    def forget(self) -> None:
        """Nothing is to be put back."""
        self.is_taken = False

    def _start_over(
        self, owners: list[tuple[Module, str]], live: list[Tensor]
    ) -> None:
        self._owners, self._live = owners, live
        self._copies = [buffer.detach().clone() for buffer in live]
        self._versions = [buffer._version for buffer in live]

    def _refresh(self) -> None:
        versions = [buffer._version for buffer in self._live]
        changed = [
            index
            for index, buffer in enumerate(self._live)
            if buffer.numel() < _LARGE
            or versions[index] != self._versions[index]
        ]
        with torch.no_grad():
            _copy(
                [self._live[index] for index in changed],
                [self._copies[index] for index in changed],
            )
        self._versions = versions


def _buffers_of(
    modules: Iterable[Module],
) -> tuple[list[tuple[Module, str]], list[Tensor]]:
    owners, live = [], []
    for module in modules:
        for name, buffer in module._buffers.items():
            if buffer is not None:
                owners.append((module, name))
                live.append(buffer)
    return owners, live


def _copy(sources: list[Tensor], targets: list[Tensor]) -> None:
    if sources:
        torch._foreach_copy_(targets, sources)
