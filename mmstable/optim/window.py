"""The iterations that make one step: what their losses looked like."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class Window:
    """Losses of one optimizer step, from one iteration or several."""

    def __init__(self) -> None:
        self._finite: Tensor | None = None
        self._total: Tensor | None = None
        self._terms: list[dict[str, Tensor]] = []
        self.kept = 0
        self.dropped = 0
        # Iterations left out by all ranks together, and how many these are.
        self.all_dropped = 0
        self._ranks = 1

    def keep(self, loss: Tensor) -> None:
        """Note whether a loss is finite, without waiting for it."""
        loss = loss.detach()
        finite = torch.isfinite(loss).all()
        if self._finite is None or self._total is None:
            self._finite, self._total = finite, loss
        else:
            self._finite = finite & self._finite
            self._total = self._total + loss
        self.kept += 1

    def drop(self) -> None:
        """Leave out one iteration."""
        self.dropped += 1

    def close(self, all_dropped: int, ranks: int) -> None:
        """Hear what all ranks have left out.

        Args:
            all_dropped (int): Iterations, together.
            ranks (int): How many ranks have averaged their gradients.
        """
        self.all_dropped = all_dropped
        self._ranks = ranks

    def note_terms(self, outputs: Mapping[str, Any]) -> None:
        """Hear of the losses that the newest one is the sum of."""
        self._terms.append(
            {
                name: value.detach()
                for name, value in outputs.items()
                if 'loss' in name and isinstance(value, Tensor)
            }
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing was heard of yet."""
        return self.kept == 0 and self.dropped == 0

    @property
    def is_named(self) -> bool:
        """Whether the losses of every iteration are known by name."""
        return len(self._terms) == self.kept + self.dropped

    @property
    def is_lost(self) -> bool:
        """Whether nothing is left of it."""
        return self.dropped > 0 and self.kept == 0

    @property
    def shrinkage(self) -> float:
        """How much too small the average over the window has become."""
        if self.all_dropped == 0:
            return 1.0
        iterations = self._ranks * (self.kept + self.dropped)
        return (iterations - self.all_dropped) / iterations

    def all_finite(self) -> bool:
        """Whether every kept loss was finite; waits for the device."""
        return self._finite is None or bool(self._finite)

    def mean_loss(self) -> float:
        """The average of the kept losses; waits for the device."""
        if self._total is None:
            return math.nan
        return float(self._total.sum()) * (1 + self.dropped / self.kept)

    def bad_terms(self) -> tuple[str, ...]:
        """Names of the losses that were not finite; waits for the device."""
        bad = {
            name: None
            for terms in self._terms
            for name, value in terms.items()
            if not torch.isfinite(value).all()
        }
        # mmengine's name for the sum, which is as bad as its worst part.
        parts = [name for name in bad if name != 'loss']
        return tuple(parts or bad)
