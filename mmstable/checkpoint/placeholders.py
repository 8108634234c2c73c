"""What in a model is not finite, and is no fault."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from mmengine.logging import print_log
from torch import Size, Tensor
from torch.nn import Module

from mmstable.checkpoint.audit import (
    AVERAGED,
    Counts,
    count_nonfinite,
    find_poison,
    has_plus_inf,
    is_statistic,
    list_culprits,
    looks_like_mask,
    plain_name,
)
from mmstable.events import Culprit
from mmstable.messages import _


class Placeholders:
    """NaN and Inf that are no poison.

    What was there from the start is not: values that are still to be filled
    in, of buffers and of parameters that are not trained. What has become
    finite must stay so: it is taken off the list, until a rollback brings an
    earlier state back. Inf is what a model may write into a buffer itself,
    at any time: a buffer may be Inf again as it was at the start, may become
    a mask of -Inf and one other value, and may hold any Inf once it has
    another shape, as a cache has that was filled. Running statistics are
    judged as weights are.

    There is one list for each model, so that all who look through a state
    find the same.
    """

    def __init__(self) -> None:
        self._at_start: dict[str, tuple[int, int]] = {}
        self._counts: dict[str, tuple[int, int]] = {}
        self._weights: set[str] = set()
        # Of all buffers at the start.
        self._shapes: dict[str, Size] = {}
        self._told: set[str] = set()

    @property
    def counts(self) -> Counts:
        """Names of tensors, to how many NaN and Inf belong there.

        It changes whenever a state is looked through.
        """
        return self._counts

    def learn(self, model: Module) -> None:
        """Look at a model before anything is loaded into it."""
        tensors = dict(model.named_buffers())
        self._shapes.update((name, one.shape) for name, one in tensors.items())
        for name, param in model.named_parameters():
            self._weights.add(name)
            # No training makes NaN finite again.
            if not param.requires_grad:
                tensors[name] = param
        for name in tensors:
            self._at_start.pop(name, None)
        for path, __ in find_poison({'state_dict': tensors}, known={}):
            name = path.partition('.')[2]
            self._at_start[name] = count_nonfinite(tensors[name])
        self.start_over()

    def start_over(self) -> None:
        """Expect the state of the start again: one was restored."""
        self._counts = dict(self._at_start)

    def find_poison(self, checkpoint: Mapping[str, Any]) -> list[Culprit]:
        """What is not finite, and should be; see :func:`find_poison`."""
        found = [
            one
            for one in find_poison(checkpoint, self._counts)
            if not self._accepts(one, checkpoint)
        ]
        if self._counts:
            self._shrink(checkpoint)
        return found

    def _accepts(
        self, culprit: Culprit, checkpoint: Mapping[str, Any]
    ) -> bool:
        """Put a buffer on the list if the model has made it so."""
        section, __, name = culprit.name.partition('.')
        tensor = checkpoint[section].get(name)
        if culprit.kind != 'Inf' or tensor is None:
            return False
        plain = name if name in self._shapes else plain_name(name)
        if section == 'optimizer' or not self._may_be_inf(plain, tensor):
            return False
        nans, infs = self._counts.get(plain, (0, 0))
        self._counts[plain] = nans, max(infs, count_nonfinite(tensor)[1])
        return True

    def _may_be_inf(self, name: str, tensor: Tensor) -> bool:
        if self._is_learned(name):
            return False
        known = self._shapes.get(name)
        if known is not None and known != tensor.shape:
            return True
        # Sums that overflow are +Inf, among zeros at first.
        is_free = known is None or self._at_start.get(name, (0, 0))[1] > 0
        return looks_like_mask(tensor) and (
            is_free or not has_plus_inf(tensor)
        )

    def _is_learned(self, name: str) -> bool:
        return name in self._weights or is_statistic(name)

    def _shrink(self, checkpoint: Mapping[str, Any]) -> None:
        """Take off the list what has become finite, and name the rest."""
        seen: dict[str, list[Tensor]] = {}
        for section, tensors in checkpoint.items():
            if str(section).endswith('state_dict'):
                for known in self._counts:
                    for name in (known, f'{AVERAGED}{known}'):
                        if name in tensors:
                            seen.setdefault(known, []).append(tensors[name])
        for name, found in seen.items():
            # An average of the model may become finite later than that.
            nans, infs = map(max, zip(*map(count_nonfinite, found)))
            before = self._counts[name]
            if not self._is_learned(name):
                infs = before[1]
            self._counts[name] = min(nans, before[0]), min(infs, before[1])
        self._tell(seen)

    def _tell(self, seen: Mapping[str, list[Tensor]]) -> None:
        new = [
            Culprit(name, 'NaN' if self._counts[name][0] else 'Inf')
            for name, (first, *__) in seen.items()
            if name in self._at_start
            and name not in self._told
            and any(self._counts[name])
            and (self._counts[name][0] or not looks_like_mask(first))
        ]
        if new:
            self._told.update(culprit.name for culprit in new)
            text = _(
                'mmstable: not finite before training began: {names}. That '
                'is no fault as long as it does not spread; what was NaN and '
                'becomes finite has to stay finite.',
                names=list_culprits(new),
            )
            print_log(text, logger='current', level=logging.WARNING)


_OF_MODELS: WeakKeyDictionary[Module, Placeholders] = WeakKeyDictionary()


def placeholders_of(model: Module) -> Placeholders:
    """The list of a model; the same for all who ask.

    Args:
        model (Module): The user's own model, without any wrapper.
    """
    return _OF_MODELS.setdefault(model, Placeholders())
