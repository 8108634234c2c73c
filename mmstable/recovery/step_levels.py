"""What loss and gradient norm are usual for one optimizer wrapper?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mmstable.checked_json import record
from mmstable.events import StepReport
from mmstable.numerics.spike import Learned, SpikeDetector


class Spike(NamedTuple):
    """A number far above its recent level.

    Args:
        quantity (str): 'loss' or 'grad_norm'.
        value (float): The number.
        level (float): The level.
    """

    quantity: str
    value: float
    level: float


class StepLevels:
    """The levels of the steps of one wrapper, learned from its own steps.

    Args:
        settings (Mapping): For :class:`SpikeDetector`.
    """

    saved = staticmethod(
        record(loss=SpikeDetector.saved, norm=SpikeDetector.saved)
    )

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._loss = SpikeDetector(**settings)
        self._norm = SpikeDetector(**settings)
        # What is far above its level and no spike any more, by quantity;
        # whoever takes note of it clears it.
        self.learned: dict[str, Learned] = {}

    def judge(self, report: StepReport) -> Spike | None:
        """Learn from a step; the spike in it, if there is one."""
        loss, norm = report.loss, report.grad_norm
        found = None
        if norm is not None and self._norm.observe(norm):
            found = Spike('grad_norm', norm, self._norm.exceeded)
        if loss is not None and self._loss.observe(loss):
            found = Spike('loss', loss, self._loss.exceeded)
        if self._norm.learned is not None:
            self.learned['grad_norm'] = self._norm.learned
            self._norm.learned = None
        if self._loss.learned is not None:
            self.learned['loss'] = self._loss.learned
            self._loss.learned = None
        return found

    def limits(self) -> tuple[float, float]:
        """The largest loss and the largest norm that are no spikes."""
        return self._loss.limit, self._norm.limit

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {
            'loss': self._loss.state_dict(),
            'norm': self._norm.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._loss.load_state_dict(state['loss'])
        self._norm.load_state_dict(state['norm'])
