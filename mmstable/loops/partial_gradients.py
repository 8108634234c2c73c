"""Gradients that a backward pass has left behind when it failed."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor


class PartialGradients:
    """Tells apart what came before a backward pass and what it has added.

    A backward pass adds to each gradient once, so a parameter has all of it
    or nothing. What was added to an older gradient cannot be taken away; that
    parameter is complete then, and gets nothing when the pass is done again.

    Args:
        params (Iterable[Tensor]): All that may get a gradient.
    """

    def __init__(self, params: Iterable[Tensor]) -> None:
        self._params = list(params)
        self._before: dict[Tensor, int] = {}
        self._complete: dict[Tensor, Tensor] = {}

    def note(self) -> None:
        """Note what there is before a backward pass that accumulates."""
        self._complete = {}
        self._before = {
            param: grad._version
            for param in self._params
            if (grad := param.grad) is not None
        }

    def changed(self) -> set[Tensor]:
        """The parameters that the failed pass has given a gradient."""
        return {
            param
            for param in self._params
            if param.grad is not None
            and param.grad._version != self._before.get(param)
        }

    def put_back(self) -> None:
        """Make ready for the same backward pass again."""
        for param in self._params:
            grad = param.grad
            if grad is None:
                continue
            known = self._before.get(param)
            if known is None or param in self._complete:
                param.grad = None
            elif grad._version != known:
                self._complete[param] = grad
                param.grad = None

    @property
    def are_mixed(self) -> bool:
        """Whether some hold a part of a batch together with older ones."""
        return bool(self._complete)

    def spoil(self) -> None:
        """Let nobody take mixed gradients for those of a step."""
        for grad in self._complete.values():
            grad.fill_(math.nan)
        self.complete()

    def complete(self) -> None:
        """After that pass: complete gradients count, others were added."""
        for param, grad in self._complete.items():
            param.grad = grad
        self._complete = {}
