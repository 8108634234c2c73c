"""Copies of running statistics, restored if their step is skipped."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from mmengine.logging import print_log
from torch import Tensor
from torch.nn import Module

from mmstable.messages import _
from mmstable.optim.grad_health import gradient_norms, stored_values

_COUNTER = 'num_batches_tracked'
_version = attrgetter('_version')
# Of any mapping: that of a `torch.jit.ScriptModule` is no dict.
_values = methodcaller('values')


class _Saved(NamedTuple):
    """A buffer of a module, the tensor that it was, and a copy of that."""

    module: Module
    name: str
    live: Tensor | None
    copy: Tensor | None


class BufferCopy:
    """A copy of the running statistics of some modules, to be restored.

    These are all floating-point and complex buffers and the counters of
    BatchNorm. What else a model counts in its buffers is left alone: it is
    not spoiled by bad data. The memory is used again by the next copy.

    A buffer that was not finite when it was copied stays as it is if it has
    become finite.
    """

    def __init__(self) -> None:
        # To be unset when nothing is to be restored.
        self.is_taken = False
        self._saved: list[_Saved] = []
        # All buffers: one that is kept alive keeps its id.
        self._all: list[Tensor | None] = []
        # The buffers of all modules, as these keep them by name.
        self._tables: list[Mapping[str, Tensor | None]] = []
        # What is not copied, and how often it was written to before.
        self._unsaved: list[tuple[Module, str, Tensor]] = []
        self._before: list[int] = []
        # What to copy if nothing but values has changed.
        self._ids: list[int] | None = None
        self._sources: list[Tensor] = []
        self._sizes: list[torch.Size] = []
        # The same by dtype and device: torch copies a list that mixes them
        # tensor by tensor, with a kernel for each.
        self._groups: list[tuple[list[Tensor], list[Tensor]]] = []

    def take(self, modules: Collection[Module]) -> None:
        """Copy the statistics that these modules, not their parts, own."""
        if len(self._tables) != len(modules):
            self._tables = [module._buffers for module in modules]
        # No loop of Python: this is done in every step of a run.
        buffers = chain.from_iterable(map(_values, self._tables))
        ids = list(map(id, buffers))
        sizes = list(map(Tensor.size, self._sources))
        if ids == self._ids and sizes == self._sizes:
            if self._groups:
                _write(self._groups)
        else:
            self._copy_anew(modules, ids)
        self.is_taken = bool(self._saved)
        self._before = [_version(buffer) for *__, buffer in self._unsaved]

    @torch.no_grad()
    def _copy_anew(self, modules: Collection[Module], ids: list[int]) -> None:
        buffers = [
            (module, name, buffer)
            for module in modules
            for name, buffer in module._buffers.items()
        ]
        self._all = [buffer for *__, buffer in buffers]
        self._saved, self._unsaved = [], []
        for module, name, buffer in buffers:
            if buffer is None or _can_spoil(buffer) or name == _COUNTER:
                copy = None if buffer is None else buffer.detach().clone()
                self._saved.append(_Saved(module, name, buffer, copy))
            elif not buffer.is_inference():
                self._unsaved.append((module, name, buffer))
        strided = [
            (stored_values(one.live), stored_values(one.copy))
            for one in self._saved
            if one.live is not None and one.copy is not None
            # torch cannot write to some of the others.
            if one.copy.layout is torch.strided
        ]
        self._sources = [live for live, __ in strided]
        self._groups = _by_kind(strided)
        self._sizes = list(map(Tensor.size, self._sources))
        count = sum(one.live is not None for one in self._saved)
        self._ids = ids if len(strided) == count else None

    def restore(self) -> None:
        """Undo what has changed the buffers since; once for each copy."""
        if not self.is_taken:
            return
        self.is_taken = False
        sound = _finite([one.copy for one in self._saved])
        finite = _finite(
            [_buffer(one.module, one.name) for one in self._saved]
        )
        # Not what was spoiled when it was copied, and is finite again.
        _restore(
            one
            for index, one in enumerate(self._saved)
            if index in sound or index not in finite
        )

    def put_back(self) -> bool:
        """Restore all buffers, finite or not.

        Returns:
            bool: Whether all buffers are what they were.
        """
        self.is_taken = False
        _restore(self._saved)
        return all(
            _version(buffer) == before and _buffer(module, name) is buffer
            for (module, name, buffer), before in zip(
                self._unsaved, self._before
            )
        )

    def write(self) -> set[tuple[int, str]]:
        """Give whatever tensors the modules have now the copied values.

        Returns:
            set: The tables, by id, and the names in them.
        """
        written = set()
        for module, name, __, copy in self._saved:
            present = module._buffers.get(name)
            if copy is None:
                module._buffers[name] = None
            elif present is not None and can_write(present, copy):
                present.data.copy_(copy)
            else:
                module._buffers[name] = copy.clone()
            written.add((id(module._buffers), name))
        return written


def _buffer(module: Module, name: str) -> Tensor | None:
    """A buffer of a module; None if it is gone."""
    # That of a `torch.jit.ScriptModule` has no `get`.
    return dict(module._buffers.items()).get(name)


def _restore(saved: Iterable[_Saved]) -> None:
    sources, targets = [], []
    for module, name, live, copy in saved:
        value = live
        if live is not None and copy is not None:
            if can_write(live, copy):
                sources.append(stored_values(copy))
                # Unnoticed by autograd: a graph that is still to be
                # back-propagated may refer to the buffer, though it does
                # not need its values.
                targets.append(stored_values(live).data)
            else:
                value = copy.clone()
        # A forward pass may have put something else in its place.
        module._buffers[name] = value
    if sources:
        _write(_by_kind(list(zip(sources, targets))))


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


def _by_kind(
    pairs: list[tuple[Tensor, Tensor]],
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Sources and targets in lists of one dtype and device each."""
    groups: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
    for source, target in pairs:
        kind = source.dtype, source.device
        sources, targets = groups.setdefault(kind, ([], []))
        sources.append(source)
        targets.append(target)
    return list(groups.values())


def _write(groups: list[tuple[list[Tensor], list[Tensor]]]) -> None:
    # What `torch.no_grad` does, which takes longer than the copies of a
    # small model: this is done in every step of a run.
    was_enabled = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        for sources, targets in groups:
            torch._foreach_copy_(targets, sources)
    finally:
        torch._C._set_grad_enabled(was_enabled)


class BufferProtection:
    """Undo what forward passes did to buffers, if their step is skipped.

    A NaN or Inf in one batch spoils BatchNorm's running statistics for good,
    even if its step is skipped. The buffers are copied before the
    first forward pass of a step; with gradient accumulation also before
    every other one, because one iteration may be left out alone. Forward
    passes of other steps in between are undone with them.

    Forward passes that never lead to a step, as those of a generator while
    only the discriminator is trained, are not undone by a later one.

    Args:
        enabled (bool): Without it nothing is copied.
        accumulates (bool): Whether several iterations make a step.
    """

    def __init__(self, enabled: bool, accumulates: bool) -> None:
        self._enabled = enabled
        self._known: WeakSet[Module] = WeakSet()
        self._modules: dict[int, Module] = {}
        self._step = BufferCopy()
        self._iteration = BufferCopy() if accumulates else None
        # The iteration of the newest forward pass.
        self._newest: int | None = None
        self._entered = self._warned = False

    def bind_model(self, model: Module) -> None:
        """Protect the buffers of a model, too."""
        if self._enabled and model not in self._known:
            self._known.add(model)
            for module in model.modules():
                self._modules.setdefault(id(module), module)

    def before_forward(self, iteration: int | None, is_used: bool) -> None:
        """Copy what the forward pass is going to change.

        Args:
            iteration (int, optional): The iteration of the run, if known.
            is_used (bool): Whether the next step has losses already.
        """
        if not self._enabled:
            return
        self._entered = True
        # Several forward passes may lead to one backward pass, but only of
        # the same iteration.
        is_new = iteration != self._newest
        is_stale = not is_used and (iteration is None or is_new)
        self._newest = iteration
        modules, single = self._modules.values(), self._iteration
        if is_stale or not self._step.is_taken:
            self._step.take(modules)
        if single is not None and (is_stale or is_new or not single.is_taken):
            single.take(modules)

    def keep_iteration(self) -> None:
        """The iteration counts."""
        if self._iteration is not None:
            self._iteration.is_taken = False

    def undo_iteration(self) -> None:
        """The iteration is left out of its step."""
        if self._iteration is not None:
            self._undo(self._iteration)

    def rewind(self) -> set[tuple[int, str]]:
        """Give the buffers of now, which may be copies, the values before.

        The copy stays: the step can still be undone.

        Returns:
            set: The tables, by id, and the names in them that were written.
        """
        return self._step.write() if self._step.is_taken else set()

    def keep_step(self) -> None:
        """The step was applied."""
        self._step.is_taken = False

    def undo_step(self) -> None:
        """The step was skipped."""
        self._undo(self._step)

    def _undo(self, copy: BufferCopy) -> None:
        copy.restore()
        if not self._enabled or self._entered or self._warned:
            return
        if any(
            buffer is not None and buffer.is_floating_point()
            for module in self._modules.values()
            for buffer in module._buffers.values()
        ):
            self._warned = True
            text = _(
                'mmstable: running statistics (BatchNorm) are not restored '
                'after skipped steps, because `train_step` of this model '
                'does not run its forward pass inside '
                '`optim_wrapper.optim_context(model)`.'
            )
            print_log(text, logger='current', level=logging.WARNING)

    def undo_failed(self, iteration: int | None) -> bool:
        """Undo the forward passes of an iteration that came to no end.

        Args:
            iteration (int, optional): The iteration of the run, if known.

        Returns:
            bool: Whether all buffers are what they were before it.
        """
        if not self._enabled:
            return False
        if iteration is None or iteration != self._newest:
            # No forward pass has begun.
            return True
        return (self._iteration or self._step).put_back()
