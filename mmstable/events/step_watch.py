"""Follow the steps of one optimizer wrapper from iteration to iteration."""

from __future__ import annotations

from typing import Any

from mmengine.optim import BaseOptimWrapper

from mmstable.events import StepReport
from mmstable.events.records import WrapperTotals
from mmstable.events.samples import read_scale


class StepWatch:
    """What is new about the steps of a wrapper that has ``last_step``.

    Args:
        name (str): What records call the wrapper.
        wrapper (BaseOptimWrapper): The wrapper.
    """

    def __init__(self, name: str, wrapper: BaseOptimWrapper) -> None:
        self.name = name
        self._wrapper: Any = wrapper
        self._seen: StepReport | None = self._wrapper.last_step
        self._scale = read_scale(wrapper)
        self._counters = self._read_counters()
        self._applied = 0
        self._skipped = 0
        self._dropped = 0
        self._faults: dict[str, int] = {}

    @property
    def grad_norm(self) -> float | None:
        """The norm of the newest step that was seen."""
        return None if self._seen is None else self._seen.grad_norm

    def new_step(self) -> StepReport | None:
        """The report of a step that was not seen before, counted."""
        report: StepReport | None = self._wrapper.last_step
        # One step may stand for several iterations.
        if report is self._seen or report is None:
            return None
        self._seen = report
        self._count(report)
        return report

    def new_scale(self, report: StepReport) -> tuple[float, float] | None:
        """The scales before and after a change that was not seen before."""
        before, after = self._scale, report.next_loss_scale
        if before is None or before == after:
            return None
        self._scale = after
        return before, after

    def totals(self) -> WrapperTotals:
        """What became of all steps so far."""
        return WrapperTotals(
            applied=self._applied,
            skipped=self._skipped,
            faults=dict(self._faults),
            dropped_micro_batches=self._dropped,
        )

    def _read_counters(self) -> tuple[int, int]:
        return self._wrapper.applied_steps, self._wrapper.skipped_steps

    def _count(self, report: StepReport) -> None:
        applied, skipped = self._counters
        self._counters = self._read_counters()
        # The counters know of steps that a later one of the same iteration
        # has hidden, but a checkpoint loaded meanwhile sets them back.
        self._applied += max(self._counters[0] - applied, report.applied)
        self._skipped += max(self._counters[1] - skipped, report.skipped)
        self._dropped += report.dropped_micro_batches
        if report.skipped and report.fault is not None:
            fault = report.fault.value
            self._faults[fault] = self._faults.get(fault, 0) + 1
