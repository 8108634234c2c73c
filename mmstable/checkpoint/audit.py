"""Find NaN and Inf in what a run has learned, saves or has loaded.

:class:`Placeholders` knows what in a model is not finite, and is no fault.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from mmengine.logging import print_log
from mmengine.runner import Runner
from torch import Size, Tensor
from torch.nn import Module

from mmstable import runner_view
from mmstable.events import Culprit, Outcome
from mmstable.messages import _, short_repr
from mmstable.optim.grad_health import (
    find_nonfinite,
    gradient_norms,
    stored_values,
    unwrap,
)
from mmstable.state.run_state import (
    RunState,
    restore_tensors,
    unsaved_buffers,
)
from mmstable.state.snapshot import HostMemory

_MEASURABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# The copy that averages a model has the model's names behind this.
AVERAGED = 'module.'
_LONGEST_KEY = 200
# What normalization layers learn without a gradient.
_STATISTICS = ('running_mean', 'running_var')

# Section, path in it, and the tensor.
_Entry = tuple[str, tuple[Any, ...], Tensor]
# Names of tensors, to how many NaN and how many Inf they hold.
Counts = Mapping[str, Sequence[int]]


def find_poison(
    checkpoint: Mapping[str, Any], known: Counts | None = None
) -> list[Culprit]:
    """Weights, buffers and optimizer state that are not finite.

    Every tensor is read once, under the first of its names, and none is
    copied. Some hold NaN or Inf for a reason, as masks do: the ones listed
    in ``known`` are fine as long as they have no more of it than listed;
    without a list, those that hold Inf and one other value only. So is one
    number for each parameter in the state of an optimizer, as the smallest
    loss so far, that is Inf at first.

    Args:
        checkpoint (Mapping): A checkpoint, from memory or from a file.
        known (Mapping[str, Sequence[int]], optional): Names in the model's
            state dict, to how many NaN and how many Inf belong there; see
            :class:`~mmstable.checkpoint.audit.Placeholders`.
            Defaults to None.

    Returns:
        list[Culprit]: Where it is, as a path into the checkpoint.
    """
    entries: dict[int, _Entry] = {}
    for section, content in checkpoint.items():
        if section == 'optimizer' or str(section).endswith('state_dict'):
            for path, tensor in tensors_in(content):
                if tensor.is_floating_point() or tensor.is_complex():
                    found = section, path, _measurable(tensor)
                    entries.setdefault(id(tensor), found)
    if not entries:
        return []
    return _judge(list(entries.values()), known)


def _judge(entries: list[_Entry], known: Counts | None) -> list[Culprit]:
    tensors = [tensor for *__, tensor in entries]
    norms = gradient_norms(tensors).tolist()
    found = []
    for index, kind in find_nonfinite(tensors, norms).items():
        section, path, tensor = entries[index]
        name = '.'.join(map(_key_text, path))
        if section == 'optimizer':
            is_fine = kind == 'Inf' and _is_bound(entries, index)
        else:
            is_fine = _belongs(name, tensor, known)
        if not is_fine:
            found.append(Culprit(f'{_key_text(section)}.{name}', kind))
    return found


def list_culprits(culprits: Sequence[Culprit], most: int = 3) -> str:
    """The first of some culprits, and how many more there are."""
    names = ', '.join(f'{c.name} ({c.kind})' for c in culprits[:most])
    more = len(culprits) - most
    if more <= 0:
        return names
    return _('{names} and {more} more', names=names, more=more)


def looks_like_mask(tensor: Tensor) -> bool:
    """Whether a tensor holds Inf and one other value only."""
    values = stored_values(_measurable(tensor))
    finite = values[~torch.isinf(values)]
    # A number that is there once is any number, unless it is 0.
    count = finite.numel()
    is_enough = count > 1 or (count == 1 and float(finite[0].abs()) == 0)
    return is_enough and bool((finite == finite[0]).all())


def is_statistic(name: str) -> bool:
    """Whether this is the running statistic of a normalization layer."""
    return name.rpartition('.')[2] in _STATISTICS


def count_nonfinite(tensor: Tensor) -> tuple[int, int]:
    """How many NaN and how many Inf a tensor holds."""
    values = stored_values(_measurable(tensor))
    return int(torch.isnan(values).sum()), int(torch.isinf(values).sum())


def plain_name(name: str) -> str:
    """What the model calls a tensor of its average."""
    return name[len(AVERAGED) :] if name.startswith(AVERAGED) else name


def _belongs(name: str, tensor: Tensor, known: Counts | None) -> bool:
    nans, infs = count_nonfinite(tensor)
    if known is None:
        return nans == 0 and not is_statistic(name) and looks_like_mask(tensor)
    most = known.get(plain_name(name), known.get(name, (0, 0)))
    return nans <= most[0] and infs <= most[1]


def _is_bound(entries: Sequence[_Entry], index: int) -> bool:
    """Whether an optimizer keeps a single number of this name everywhere."""
    leaf = _leaf(entries[index])
    return all(
        one[2].dim() == 0
        for one in entries
        if one[0] == 'optimizer' and _leaf(one) == leaf
    )


def _leaf(entry: _Entry) -> str:
    return str(entry[1][-1]).rpartition('.')[2]


def _measurable(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if tensor.layout not in (torch.strided, torch.sparse_coo):
        tensor = tensor.values()
    # Floats of eight bits have no norm.
    is_plain = tensor.dtype in _MEASURABLE or tensor.is_complex()
    return tensor if is_plain else tensor.float()


def _key_text(key: Any) -> str:
    # A file can have a long one in front of very many tensors.
    return key[:_LONGEST_KEY] if isinstance(key, str) else short_repr(key)


def tensors_in(
    content: Any, path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Yield all tensors in dicts, lists and tuples, with their paths."""
    if isinstance(content, Tensor):
        yield path, content
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from tensors_in(value, (*path, key))
    elif isinstance(content, (list, tuple)):
        for index, value in enumerate(content):
            yield from tensors_in(value, (*path, index))


class Placeholders:
    """NaN and Inf that are no poison.

    What was there from the start is not: values of buffers and of parameters
    that are not trained, which are still to be filled in. A buffer may be Inf
    again as it was at the start, may get masks of -Inf, and may hold any Inf
    once it has another shape, as a cache has that was filled. Running
    statistics are judged as weights are. What any other buffer holds is no
    poison either while steps are good: it reaches neither loss nor gradients.
    It is named in a warning, once.

    There is one list for each model, so that all who look through a state
    find the same. A checkpoint is audited in the background.
    """

    def __init__(self) -> None:
        self._at_start: dict[str, tuple[int, int]] = {}
        # What was accepted since then.
        self._accepted: dict[str, tuple[int, int]] = {}
        self._weights: set[str] = set()
        # Of all buffers at the start.
        self._shapes: dict[str, Size] = {}
        # Buffers that were accepted because steps are good.
        self.harmless: set[str] = set()

    def learn(self, model: Module) -> None:
        """Look at a model before anything is loaded into it."""
        tensors = dict(model.named_buffers())
        self._shapes.update((name, one.shape) for name, one in tensors.items())
        for name, param in model.named_parameters():
            self._weights.add(name)
            # No training makes NaN finite again.
            if not param.requires_grad:
                tensors[name] = param
        for path, __ in find_poison({'state_dict': tensors}, known={}):
            name = path.partition('.')[2]
            self._at_start[name] = count_nonfinite(tensors[name])

    def start_over(self) -> None:
        """Expect the state of the start again: one was restored."""
        self._accepted.clear()

    def audit(
        self, checkpoint: Mapping[str, Any], steps_are_good: bool = False
    ) -> tuple[list[Culprit], Counts]:
        """Find poison; also give how many NaN and Inf belong to each tensor.

        Args:
            checkpoint (Mapping): As for :func:`find_poison`.
            steps_are_good (bool): Whether the newest steps were, so that
                nothing of it has reached them. Defaults to False.
        """
        found = [
            one
            for one in find_poison(checkpoint, self._known())
            if not self._accepts(one, checkpoint, steps_are_good)
        ]
        return found, self._known()

    def _known(self) -> dict[str, tuple[int, int]]:
        return {**self._at_start, **self._accepted}

    def _accepts(
        self,
        culprit: Culprit,
        checkpoint: Mapping[str, Any],
        steps_are_good: bool,
    ) -> bool:
        """Put a buffer on the list if the model has made it so."""
        section, __, name = culprit.name.partition('.')
        tensor = checkpoint[section].get(name)
        plain = name if name in self._shapes else plain_name(name)
        is_learned = plain in self._weights or is_statistic(plain)
        if section == 'optimizer' or tensor is None or is_learned:
            return False
        if culprit.kind != 'Inf' or not self._may_be_inf(plain, tensor):
            if not steps_are_good:
                return False
            self._warn_of_harmless(Culprit(plain, culprit.kind))
        known = self._known().get(plain, (0, 0))
        nans, infs = map(max, zip(known, count_nonfinite(tensor)))
        self._accepted[plain] = nans, infs
        return True

    def _may_be_inf(self, name: str, tensor: Tensor) -> bool:
        if (
            self._shapes.get(name) != tensor.shape
            or self._at_start.get(name, (0, 0))[1]
        ):
            return True
        # Masks are -Inf; sums that overflow are +Inf.
        values = stored_values(_measurable(tensor))
        is_bad = torch.isinf if values.is_complex() else torch.isposinf
        return not is_bad(values).any()

    def _warn_of_harmless(self, culprit: Culprit) -> None:
        if culprit.name in self.harmless:
            return
        self.harmless.add(culprit.name)
        text = _(
            'mmstable: a buffer holds values that are not finite: {names}. '
            'It reaches neither the loss nor gradients, so training '
            'continues. Is something divided by 0, as for a class without '
            'samples?',
            names=list_culprits([culprit]),
        )
        print_log(text, logger='current', level=logging.WARNING)


_OF_MODELS: WeakKeyDictionary[Module, Placeholders] = WeakKeyDictionary()


def placeholders_of(model: Module) -> Placeholders:
    """The list of a model; the same for all who ask.

    Args:
        model (Module): The user's own model, without any wrapper.
    """
    return _OF_MODELS.setdefault(model, Placeholders())


def steps_are_good(runner: Runner) -> bool:
    """Whether the newest step of every safe wrapper was a good one."""
    wrappers = runner_view.wrappers(runner).values()
    newest = [one.steps.newest for one in wrappers if hasattr(one, 'steps')]
    return all(
        one is not None
        and (
            one.fault is None
            or (one.outcome is Outcome.APPLIED and not one.culprits)
        )
        for one in newest
    )


class RunAudit:
    """Looks through a run, and knows what NaN and Inf belong there.

    Args:
        model (Module): The model before anything is loaded into it.
    """

    def __init__(self, model: Module) -> None:
        self._placeholders = placeholders_of(model)
        self._placeholders.learn(model)
        buffers = unsaved_buffers(model)
        memory = HostMemory(buffers.values())
        self._unsaved = {
            name: memory.copy(buffer) for name, buffer in buffers.items()
        }

    @property
    def harmless(self) -> set[str]:
        """Buffers that are not finite, and reach neither loss nor steps."""
        return self._placeholders.harmless

    def find(self, runner: Runner) -> list[Culprit]:
        """Weights, buffers and optimizer state that are not finite."""
        state = RunState(runner).tensors()
        return self._placeholders.audit(state, steps_are_good(runner))[0]

    def heal(self, runner: Runner) -> None:
        """Restore what a rollback could not: buffers of no checkpoint.

        Those that are not finite get the values from the start of the run,
        which a resumed run would have, too. The others stay as they are.
        """
        self._placeholders.start_over()
        bad = {culprit.name for culprit in self.find(runner)}
        copies = {
            name: copy
            for name, copy in self._unsaved.items()
            if f'state_dict.{name}' in bad
        }
        restore_tensors(unwrap(runner.model), copies)
