"""The iterations that make one step: what their losses looked like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class Window:
    """Losses of one optimizer step, from one iteration or several."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._terms: list[dict[str, Tensor]] = []
        self.kept = 0
        self.dropped = 0
        # Iterations of all ranks together, and those left out of them.
        self.all_iterations = 1
        self.all_dropped = 0
        # Iterations whose gradients are gone, on all ranks, for no fault.
        self.forgotten = 0
        # Whether it has a loss of the iteration that is under way.
        self.is_fresh = False
        # Whether an iteration did not fit in memory.
        self.ran_out = False
        # Whether nothing is left of it.
        self.is_lost = False
        # How much too small the average over the window has become.
        self.shrinkage = 1.0

    def keep(self, loss: Tensor) -> None:
        """Note a loss, which is looked at only if its step is bad."""
        self._losses.append(loss.detach())
        self.kept += 1
        self.is_fresh = True
        self.is_lost = False

    def drop(self, ran_out: bool = False) -> None:
        """Leave out one iteration.

        Args:
            ran_out (bool): Whether it did not fit in memory. Defaults to
                False.
        """
        self.ran_out |= ran_out
        self.dropped += 1
        self.is_fresh = True
        self.is_lost = self.kept == 0

    def forget(self) -> Window:
        """What is left of it when its gradients are thrown away."""
        rest = Window()
        rest.forgotten = self.kept + self.dropped + self.forgotten
        return rest

    def close(self, all_dropped: int, ranks: int) -> None:
        """Take account of what all ranks have left out.

        Args:
            all_dropped (int): Iterations, together.
            ranks (int): How many ranks have averaged their gradients.
        """
        self.all_dropped = all_dropped
        iterations = ranks * (self.kept + self.dropped)
        self.all_iterations = max(iterations, 1)
        used = iterations - all_dropped
        lost = all_dropped + ranks * self.forgotten
        if lost and used:
            self.shrinkage = used / (used + lost)

    def note_terms(self, outputs: Mapping[str, Any]) -> None:
        """Note the losses of an iteration; more are to come."""
        self.is_fresh = False
        self._terms.append(_loss_terms(outputs))

    def all_finite(self) -> bool:
        """Whether every kept loss was finite; waits for the device."""
        return all(bool(torch.isfinite(one).all()) for one in self._losses)

    def mean_loss(self) -> Tensor | None:
        """The average of the kept losses, on their device."""
        if not self._losses:
            return None
        loss = self._losses[0]
        if len(self._losses) > 1 or loss.dim():
            sums = [one.sum().to(loss.device) for one in self._losses]
            loss = torch.stack(sums).sum()
        missing = self.dropped + self.forgotten
        return loss * (1 + missing / self.kept) if missing else loss

    def bad_terms(self, outputs: Any) -> tuple[str, ...]:
        """Names of the losses that were not finite; waits for the device.

        Args:
            outputs (Mapping, optional): Of the last iteration of the window.
        """
        terms = list(self._terms)
        if isinstance(outputs, Mapping):
            terms.append(_loss_terms(outputs))
        bad = {
            name: None
            for one in terms
            for name, value in one.items()
            if not torch.isfinite(value).all()
        }
        # mmengine's name for the sum, which is as bad as its worst part.
        parts = [name for name in bad if name != 'loss']
        return tuple(parts or bad)


def _loss_terms(outputs: Mapping[str, Any]) -> dict[str, Tensor]:
    return {
        name: value.detach()
        for name, value in outputs.items()
        if 'loss' in name and isinstance(value, Tensor)
    }
