"""Running statistics as they were before a forward pass."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from itertools import chain
from operator import attrgetter

import torch
from torch import Tensor
from torch.nn import Module, SyncBatchNorm
from torch.nn.modules.batchnorm import _BatchNorm

from mmstable.numerics.grad_health import gradient_norms

_COUNTER = 'num_batches_tracked'
_COUNTED = (_BatchNorm.forward, SyncBatchNorm.forward)
_version = attrgetter('_version')


class BufferCopy:
    """A copy of the running statistics of some modules, to be restored.

    These are all floating-point and complex buffers and the counters of
    BatchNorm. What else a model counts in its buffers is left alone: it is
    not spoiled by bad data. The memory is used again when the copy is taken
    anew.

    Forward passes of other steps may write to a buffer, too, and that cannot
    be told from what is to be undone. Such a buffer is restored only if it
    is not finite any more. One that was not finite when it was copied stays
    as it is if it has become finite.
    """

    def __init__(self) -> None:
        # To be unset when nothing is to be restored.
        self.is_taken = False
        self._owners: list[tuple[Module, str]] = []
        self._all: list[Tensor | None] = []
        self._live: list[Tensor | None] = []
        self._copies: list[Tensor | None] = []
        # What tells that an owner ran, and how often the newest forward pass
        # has left it written to.
        self._runners: list[Module] = []
        self._written: list[Tensor] = []
        self._left: list[int] = []
        # What has run in forward passes of others since.
        self._shared: set[Module] = set()
        # The buffers of all modules, as these keep them by name.
        self._tables: list[dict[str, Tensor | None]] = []
        # What is not copied, and how often it was written to before.
        self._left_alone: list[tuple[Module, str]] = []
        self._unsaved: list[Tensor] = []
        self._before: list[int] = []
        # What to copy if nothing but values has changed.
        self._ids: list[int] | None = None
        self._sources: list[Tensor] = []
        self._targets: list[Tensor] = []
        self._sizes: list[torch.Size] = []

    def take(self, modules: Collection[Module]) -> None:
        """Copy the statistics that these modules, not their parts, own."""
        self._left = []
        self._shared.clear()
        if len(self._tables) != len(modules):
            self._tables = [module._buffers for module in modules]
        # No loop of Python: this is done in every step of a run. The tensors
        # of known ids are kept, so no other one can get an id.
        buffers = chain.from_iterable(map(dict.values, self._tables))
        ids = list(map(id, buffers))
        sizes = list(map(Tensor.size, self._sources))
        if ids == self._ids and sizes == self._sizes:
            _write(self._sources, self._targets)
        else:
            self._copy_anew(modules, ids)
        self.is_taken = bool(self._owners)
        self._before = list(map(_version, self._unsaved))

    def _copy_anew(self, modules: Collection[Module], ids: list[int]) -> None:
        buffers = [
            (module, name, buffer)
            for module in modules
            for name, buffer in module._buffers.items()
        ]
        kept = [
            (module, name, buffer, _clone(buffer))
            for module, name, buffer in buffers
            if buffer is None or _can_spoil(buffer) or name == _COUNTER
        ]
        self._owners = [(module, name) for module, name, _, _ in kept]
        copied = set(self._owners)
        others = [
            (module, name, buffer)
            for module, name, buffer in buffers
            if buffer is not None and (module, name) not in copied
            if not buffer.is_inference()
        ]
        self._left_alone = [(module, name) for module, name, _ in others]
        self._unsaved = [buffer for _, _, buffer in others]
        self._all = [buffer for _, _, buffer in buffers]
        self._live = [buffer for _, _, buffer, _ in kept]
        self._copies = [copy for _, _, _, copy in kept]
        written = _what_is_written(module for module, _, _, _ in kept)
        self._runners = [module for module, _ in written]
        self._written = [buffer for _, buffer in written]
        strided = [
            (buffer, copy)
            for _, _, buffer, copy in kept
            if buffer is not None and copy is not None
            # torch cannot write to some of the others.
            if copy.layout is torch.strided
        ]
        self._sources = [buffer for buffer, _ in strided]
        self._targets = [copy for _, copy in strided]
        self._sizes = list(map(Tensor.size, self._sources))
        is_all = len(strided) == sum(one is not None for one in self._live)
        self._ids = ids if is_all else None

    def note_others(self) -> None:
        """Note which modules have run since the last forward pass."""
        now = map(_version, self._written)
        for module, version, left in zip(self._runners, now, self._left):
            if version != left:
                self._shared.add(module)

    def leave(self) -> None:
        """Note that a forward pass is over."""
        self._left = list(map(_version, self._written))

    def restore(self) -> bool:
        """Undo what the forward passes did to the buffers.

        Once for each copy.

        Returns:
            bool: Whether something could not be undone, because forward
            passes of other steps have written to the same buffers.
        """
        if not self.is_taken:
            return False
        self.is_taken = False
        self.note_others()
        sound = _finite(self._copies)
        finite = _finite(
            [module._buffers.get(name) for module, name in self._owners]
        )
        wanted, kept = [], False
        for index, (module, _) in enumerate(self._owners):
            if index not in sound and index in finite:
                # Spoiled when it was copied, and mended since.
                continue
            if module in self._shared and index in finite:
                kept = True
            else:
                wanted.append(index)
        self._restore(wanted)
        return kept

    def put_back(self) -> bool:
        """Bring everything back as it was, whatever it was.

        Returns:
            bool: Whether all buffers are what they were.
        """
        self.is_taken = False
        self.note_others()
        self._restore(range(len(self._owners)))
        return (
            not self._shared
            and self._before == list(map(_version, self._unsaved))
            and all(
                module._buffers.get(name) is buffer
                for (module, name), buffer in zip(
                    self._left_alone, self._unsaved
                )
            )
        )

    def _restore(self, indices: Iterable[int]) -> None:
        sources, targets = [], []
        for index in indices:
            (module, name), live = self._owners[index], self._live[index]
            copy, value = self._copies[index], live
            if live is not None and copy is not None:
                if can_write(live, copy):
                    sources.append(copy)
                    # Unnoticed by autograd: a graph that is still to be
                    # back-propagated may refer to the buffer, though it does
                    # not need its values.
                    targets.append(live.data)
                else:
                    value = copy.clone()
            # A forward pass may have put something else in its place.
            module._buffers[name] = value
        _write(sources, targets)


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


def _clone(buffer: Tensor | None) -> Tensor | None:
    return None if buffer is None else buffer.detach().clone()


def _what_is_written(owners: Iterable[Module]) -> list[tuple[Module, Tensor]]:
    """What tells that a module ran: its counter, or all of its buffers."""
    return [
        (module, buffer)
        for module in dict.fromkeys(owners)
        for name, buffer in module._buffers.items()
        if buffer is not None and not buffer.is_inference()
        if name == _COUNTER or not _counts(module)
    ]


def _counts(module: Module) -> bool:
    """Whether a module counts its forward passes in training.

    The kernels of BatchNorm do not tell what they write to its statistics.
    """
    return (
        type(module).forward in _COUNTED
        and module._buffers.get(_COUNTER) is not None
    )


def _can_spoil(buffer: Tensor) -> bool:
    """Whether there is a NaN of its kind."""
    return buffer.is_floating_point() or buffer.is_complex()


def _finite(tensors: list[Tensor | None]) -> set[int]:
    """Those that hold no NaN and no Inf; waits for the device."""
    sound, measured, values = set(), [], []
    for index, tensor in enumerate(tensors):
        if tensor is None or not _can_spoil(tensor):
            sound.add(index)
        elif tensor.layout is torch.strided:
            measured.append(index)
            values.append(_real(tensor.detach()))
        elif bool(torch.isfinite(tensor.to_dense()).all()):
            sound.add(index)
    for index, norm in zip(measured, gradient_norms(values).tolist()):
        if math.isfinite(norm):
            sound.add(index)
    return sound


def _real(tensor: Tensor) -> Tensor:
    # Not every kernel knows every complex dtype.
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor


def _write(sources: list[Tensor], targets: list[Tensor]) -> None:
    if not sources:
        return
    # What `torch.no_grad` does, which takes longer than the copies of a
    # small model: this is done in every step of a run.
    was_enabled = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        torch._foreach_copy_(targets, sources)
    finally:
        torch._C._set_grad_enabled(was_enabled)
