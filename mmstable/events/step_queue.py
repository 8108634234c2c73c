"""Reports of steps on their way from a wrapper to its subscriber."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Callable

from mmengine.dist import get_rank
from torch import Tensor

from mmstable.events.samples import read_losses
from mmstable.events.step_report import Fault, StepReport
from mmstable.events.step_tally import StepTally

# Names the losses of a step that were not finite, given the outputs of the
# iteration that it was made in.
NameTerms = Callable[[Mapping[str, Any]], 'tuple[str, ...]']


class StepQueue:
    """The steps of one optimizer, each published once, in order, final.

    A report is complete when its iteration is over, because only the outputs
    of the model tell which loss was not finite. Until then it waits here.
    Without a subscriber there is nothing to wait for.

    Args:
        publish_alone (Callable): Called with every report as long as nobody
            has subscribed. Defaults to None.
        is_observed (bool): Whether only the outputs of an iteration tell
            that its loss was not finite. Defaults to False.
    """

    def __init__(
        self,
        publish_alone: Callable[[StepReport], None] | None = None,
        is_observed: bool = False,
    ) -> None:
        self.tally = StepTally()
        self._is_observed = is_observed
        self.newest: StepReport | None = None
        # Of the newest applied step, for whoever asks: names, parameters, the
        # norms of their gradients, what these are larger by, and the order.
        self.norms: tuple[Any, list[Tensor], Tensor, float, float] | None = (
            None
        )
        # Set by the subscriber: what to put into reports.
        self.wrapper = ''
        self.iteration: int | None = None
        self._publish_alone = publish_alone
        self._publish: Callable[[StepReport], None] | None = None
        self._waiting: list[tuple[StepReport, NameTerms | None]] = []

    def subscribe(
        self, wrapper: str, publish: Callable[[StepReport], None]
    ) -> None:
        """Have all steps from now on published to one listener.

        Args:
            wrapper (str): What reports call the optimizer wrapper.
            publish (Callable): Called once with the final report of a step.
        """
        self.wrapper = wrapper
        self._publish = publish

    def unsubscribe(self) -> None:
        """End the subscription; what still waits is published first."""
        self.publish()
        self._publish = self.iteration = None

    def add(
        self, report: StepReport, name_terms: NameTerms | None = None
    ) -> None:
        """Take in what became of a step.

        Args:
            report (StepReport): The report.
            name_terms (Callable, optional): Names the losses of the step
                that were not finite. Defaults to None.
        """
        self.newest = report
        if self._publish is not None:
            self._waiting.append((report, name_terms))
            return
        self.tally.add(report)
        if self._publish_alone is not None:
            self._publish_alone(report)

    def publish(self, outputs: Any = None) -> None:
        """Publish the steps of an iteration that is over.

        Args:
            outputs (Mapping, optional): What the model's ``train_step`` gave.
        """
        waiting, self._waiting = self._waiting, []
        if self._publish is None:
            return
        for report, name_terms in waiting:
            if report.fault is None:
                self._publish(report)
            else:
                self._publish(self._complete(report, name_terms, outputs))

    def _complete(
        self, report: StepReport, name_terms: NameTerms | None, outputs: Any
    ) -> StepReport:
        terms: tuple[str, ...] = ()
        is_loss = report.fault is Fault.NAN_LOSS
        if name_terms is not None and (is_loss or self._is_observed):
            terms = name_terms(outputs)
        final = replace(
            report,
            fault=Fault.NAN_LOSS if terms else report.fault,
            rank=get_rank(),
            losses=read_losses(outputs),
            loss_terms=terms,
        )
        if self.newest is report:
            self.newest = final
        return final
