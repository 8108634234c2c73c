"""The iterations that make one step: what their losses looked like."""

from __future__ import annotations

import torch
from torch import Tensor


class Window:
    """Losses of one optimizer step, from one iteration or several."""

    def __init__(self) -> None:
        self._finite: Tensor | None = None
        self.kept = 0
        self.dropped = 0

    def keep(self, loss: Tensor) -> None:
        """Note whether a loss is finite, without waiting for it."""
        finite = torch.isfinite(loss.detach()).all()
        self._finite = (
            finite if self._finite is None else finite & self._finite
        )
        self.kept += 1

    def drop(self) -> None:
        """Leave out one iteration."""
        self.dropped += 1

    @property
    def is_lost(self) -> bool:
        """Whether nothing is left of it."""
        return self.dropped > 0 and self.kept == 0

    @property
    def shrinkage(self) -> float:
        """How much too small the average over the window has become."""
        if self.dropped == 0:
            return 1.0
        return self.kept / (self.kept + self.dropped)

    def all_finite(self) -> bool:
        """Whether every kept loss was finite; waits for the device."""
        return self._finite is None or bool(self._finite)
