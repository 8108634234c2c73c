"""The scalars of one optimizer wrapper, for log lines and back-ends."""

from __future__ import annotations

import math

from mmengine.logging import MessageHub

from mmstable.events.step_report import Outcome, StepReport
from mmstable.events.step_tally import StepTally


class StepScalars:
    """Writes ``grad_norm``, ``stable/skipped`` and ``stable/loss_scale``.

    A count is written when it changes: mmengine logs the newest value, and
    every value that is written costs more than all the rest of this.

    Args:
        hub (MessageHub): Of the run.
        wrapper (str): The wrapper's name, if there are several. Defaults to
            ''.
        scaled (bool): Whether losses are scaled. Defaults to False.
        with_norm (bool): Whether to write the norm; mmengine's wrappers do
            that themselves if they clip. Defaults to True.
    """

    def __init__(
        self,
        hub: MessageHub,
        wrapper: str = '',
        scaled: bool = False,
        with_norm: bool = True,
    ) -> None:
        prefix = f'{wrapper}/' if wrapper else ''
        self._hub = hub
        self._norm = f'train/{prefix}grad_norm'
        self._skipped = f'train/stable/{prefix}skipped'
        self._loss_scale = f'train/stable/{prefix}loss_scale'
        self._scaled = scaled
        self._with_norm = with_norm
        self._skipped_written: int | None = None
        if self._skipped in hub.log_scalars:
            # Of a resumed run.
            written = hub.get_scalar(self._skipped).current()
            self._skipped_written = int(written)

    def write(self, report: StepReport, tally: StepTally) -> None:
        """Write what a step has changed."""
        if report.outcome is Outcome.EMPTY:
            return
        norm = report.grad_norm
        if (
            self._with_norm
            and norm is not None
            and report.outcome is Outcome.APPLIED
            and math.isfinite(norm)
        ):
            self._hub.update_scalar(self._norm, norm)
        if tally.skipped != self._skipped_written:
            self._skipped_written = tally.skipped
            self._hub.update_scalar(self._skipped, tally.skipped)
        if self._scaled:
            self._hub.update_scalar(self._loss_scale, report.next_loss_scale)
