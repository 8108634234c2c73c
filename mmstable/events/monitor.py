"""From a wrapper to the hooks: the one path of every optimizer step.

A wrapper adds the report of a step to its :class:`StepQueue`, which hands it
to :class:`RunMonitor`. When the iteration is over, the monitor completes the
reports, counts each in the wrapper's :class:`StepTally`, writes its scalars
and calls the hooks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Callable, ClassVar, Optional, Protocol

import numpy as np
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.logging import MessageHub
from mmengine.runner import Runner
from torch import Tensor

from mmstable import runner_view
from mmstable.errors import CheckpointError
from mmstable.events.records import (
    Event,
    Fault,
    Injection,
    Intervention,
    Outcome,
    Poisoned,
    ScaleChange,
    StepReport,
    WrapperTotals,
)
from mmstable.events.samples import read_losses, read_scale
from mmstable.events.saved import Saved
from mmstable.io.schema import Check, anything, count, mapping_of, record, text
from mmstable.messages import _


@dataclass
class StepTally(Saved):
    """Counts of steps, over the whole run.

    Args:
        applied (int): Steps that updated the weights. Defaults to 0.
        skipped (int): Steps that were skipped. Defaults to 0.
        dropped_micro_batches (int): Iterations that were left out of their
            accumulation windows. Defaults to 0.
        faults (Counter): Skipped steps by fault. Defaults to Counter().
    """

    state: ClassVar[Mapping[str, Any]] = dict(
        applied=count,
        skipped=count,
        dropped_micro_batches=count,
        faults=mapping_of(text(64), count),
    )

    applied: int = 0
    skipped: int = 0
    dropped_micro_batches: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, report: StepReport) -> None:
        """Count a step."""
        if report.outcome is Outcome.APPLIED:
            self.applied += 1
        elif report.outcome is Outcome.SKIPPED:
            self.skipped += 1
            if report.fault is not None:
                self.faults[report.fault.value] += 1
        self.dropped_micro_batches += report.dropped_micro_batches

    def since(self, before: WrapperTotals) -> WrapperTotals:
        """The counts without those of an earlier :meth:`totals`."""
        return WrapperTotals(
            self.applied - before.applied,
            self.skipped - before.skipped,
            dict(self.faults - Counter(before.faults)),
            self.dropped_micro_batches - before.dropped_micro_batches,
        )

    def totals(self) -> WrapperTotals:
        """The counts as they are now."""
        return self.since(WrapperTotals())


# Names the losses of a step that were not finite, given the outputs of the
# iteration that it was made in.
NameTerms = Callable[[Mapping[str, Any]], 'tuple[str, ...]']
# Reports that wait for the end of their iteration: only its outputs show
# which loss was not finite.
Reports = list[tuple[StepReport, Optional[NameTerms]]]


class StepQueue:
    """The steps of one optimizer, each reported once, in order.

    Without a subscriber a step is counted at once.

    Args:
        publish_alone (Callable, optional): Called with every report as long
            as there is no subscriber. Defaults to None.
        is_observed (bool): Whether only the outputs of an iteration show
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
        # Whether averages in the log have a loss that was not finite.
        self.has_bad_loss = False
        # Of the newest applied step: names, parameters, the norms of their
        # gradients, the scale of these, and the order of the norm.
        self.norms: tuple[Any, list[Tensor], Tensor, float, float] | None = (
            None
        )
        # Set by the subscriber, for the reports.
        self.wrapper = ''
        self.iteration: int | None = None
        self._publish_alone = publish_alone
        self._reports: Reports | None = None

    def subscribe(self, wrapper: str, reports: Reports | None) -> None:
        """Have all steps from now on reported to one list; None ends that.

        Args:
            wrapper (str): What reports call the optimizer wrapper.
            reports (Reports, optional): Gets the report of each step.
        """
        self.wrapper = wrapper
        self._reports = reports
        if reports is None:
            self.iteration = None

    def add(
        self, report: StepReport, name_terms: NameTerms | None = None
    ) -> None:
        """Take the report of a step.

        Args:
            report (StepReport): The report.
            name_terms (Callable, optional): Names the losses of the step
                that were not finite. Defaults to None.
        """
        self.newest = report
        if self._reports is not None:
            self._reports.append((report, name_terms))
            return
        self.tally.add(report)
        if self._publish_alone is not None:
            self._publish_alone(report)

    def complete(
        self, report: StepReport, name_terms: NameTerms | None, outputs: Any
    ) -> StepReport:
        """Add what the outputs of the iteration say about a bad step.

        Args:
            report (StepReport): The report.
            name_terms (Callable, optional): Names the losses of the step
                that were not finite.
            outputs (Mapping, optional): What the model's ``train_step`` gave.
        """
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


# The checks of what is saved below ``checkpoint['mmstable']``, by its key.
SAVED_STATES: dict[str, Check] = {}


def read_state(checkpoint: dict[str, Any], name: str) -> Any:
    """One state below ``checkpoint['mmstable']``, checked.

    Args:
        checkpoint (dict): The checkpoint.
        name (str): The key of the state.

    Returns:
        Any: The state; None if there is none.

    Raises:
        CheckpointError: If it cannot have been saved by mmstable.
    """
    state = checkpoint.get('mmstable', {}).get(name)
    try:
        return None if state is None else SAVED_STATES[name](state)
    except ValueError as error:
        reason = f'`mmstable`: `{name}`: {error}'
        raise CheckpointError(
            _('no run saves this: {reason}', reason=reason)
        ) from error


class StatefulHook(Hook):
    """A hook whose state is part of every checkpoint.

    What :meth:`state_dict` gives is saved below ``checkpoint['mmstable']``,
    where mmengine does not look. ``saved`` is the check of it: a checkpoint
    is verified by it, and :meth:`load_state_dict` gets what it returns.
    """

    saved: Check = staticmethod(anything)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        SAVED_STATES[cls.__name__] = cls.saved

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Save the state of this hook."""
        state = self.state_dict()
        if state:
            ours = checkpoint.setdefault('mmstable', {})
            ours[type(self).__name__] = state

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Load the state of this hook, if the run is resumed."""
        # As mmengine's EMAHook does: weights alone start a new run.
        if not runner_view.is_resuming(runner):
            return
        state = read_state(checkpoint, type(self).__name__)
        if state is not None:
            self.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know, in plain Python types."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""


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
        # A run without a bad step logs no zeros.
        self._skipped_written = 0
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


# mmengine's LogProcessor averages at least so many values by default.
_AVERAGED = 10


def mask_nonfinite(hub: MessageHub) -> bool:
    """Keep losses that are not finite out of the averages in the log.

    mmengine divides the sum of the newest values of a loss by their count, so
    that one NaN would hide all others. A value that is not finite becomes 0
    and counts as none. Where all of the newest are not finite, so is the
    average.

    Args:
        hub (MessageHub): Of the run; RuntimeInfoHook has added the losses of
            this iteration.

    Returns:
        bool: Whether no loss is left that is not finite.
    """
    is_clean = True
    for key, history in hub.log_scalars.items():
        if not (key.startswith('train/') and 'loss' in key):
            continue
        values, counts = history.data
        is_finite = np.isfinite(values)
        if (is_finite & (counts > 0))[-_AVERAGED:].any():
            values[~is_finite] = counts[~is_finite] = 0
        else:
            is_clean = False
    return is_clean


# Stages for one kind of event: their name and arguments.
_STAGES: dict[type, Callable[[Any], tuple[str, dict[str, Any]]]] = {
    Intervention: lambda e: ('after_intervention', {'intervention': e}),
    Injection: lambda e: ('after_fault_injected', {'fault': e}),
    Poisoned: lambda e: ('after_poisoned', {'culprits': e.culprits}),
}


class StepSource(Protocol):
    """A safe wrapper, or the observer of one of mmengine's."""

    steps: StepQueue
    is_stock: bool

    def attach(self) -> None:
        """Begin to observe a wrapper of mmengine."""

    def detach(self) -> None:
        """End that."""

    def record_losses(self, outputs: Any) -> None:
        """End an iteration: all of its steps are reported."""


class RunMonitor(StatefulHook):
    """Publishes every step of every wrapper to all hooks of a runner.

    There is one for each runner, found by :meth:`of`. Any hook can listen::

        after_step(runner, name, report)     every optimizer step
        after_bad_step(runner, report)       every step with a fault
        after_event(runner, event)           every event, bad steps included

    Args:
        find_sources (Callable): Gives the sources of steps of a runner, by
            the name of their wrapper.
    """

    # After RuntimeInfoHook (VERY_HIGH) has read the loss, so that reading
    # the verdict of a step does not wait; before all listeners (HIGH).
    priority = 20
    saved = staticmethod(record(tallies=mapping_of(text(), StepTally.saved)))

    def __init__(
        self, find_sources: Callable[[Runner], dict[str, StepSource]]
    ) -> None:
        # Of the run, this one included, as in mmengine's log lines.
        self.iteration = 0
        self.sources: dict[str, StepSource] = {}
        self._find_sources = find_sources
        self._is_bound = False
        # Those of this iteration.
        self._reports: Reports = []
        self._scalars: dict[str, StepScalars] = {}
        self._scales: dict[str, float | None] = {}
        self._saved_tallies: Mapping[str, Any] = {}
        self._hooks_seen = 0
        self._listeners: list[Callable[..., None]] = []

    @classmethod
    def of(cls, runner: Runner) -> RunMonitor | None:
        """The monitor of a runner, if it has one."""
        return runner_view.find_hook(runner, cls)

    def bind(self, runner: Runner) -> None:
        """Subscribe to all wrappers of a run that is about to train."""
        if self._is_bound:
            return
        self._is_bound = True
        self._hooks_seen = 0
        self.iteration = runner.iter
        self.sources = self._find_sources(runner)
        wrappers = runner_view.wrappers(runner)
        for name, source in self.sources.items():
            wrapper = wrappers[name]
            scale = read_scale(wrapper)
            self._scales[name] = scale
            self._scalars[name] = StepScalars(
                runner.message_hub,
                name if len(wrappers) > 1 else '',
                scaled=scale is not None,
                with_norm=not (
                    source.is_stock
                    and getattr(wrapper, 'clip_grad_kwargs', None)
                ),
            )
            source.steps.subscribe(name, self._reports)
            source.attach()
            if source.is_stock and name in self._saved_tallies:
                saved = self._saved_tallies[name]
                source.steps.tally.load_state_dict(saved)

    def before_train(self, runner: Runner) -> None:
        """Subscribe to all wrappers."""
        self.bind(runner)

    def before_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
    ) -> None:
        """Begin an iteration."""
        self.iteration = iteration = runner.iter + 1
        for source in self.sources.values():
            source.steps.iteration = iteration

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
        outputs: dict | None = None,
    ) -> None:
        """Publish the steps of this iteration."""
        for source in self.sources.values():
            source.record_losses(outputs)
            steps = source.steps
            if steps.has_bad_loss:
                steps.has_bad_loss = not mask_nonfinite(runner.message_hub)
        self._publish(runner, outputs)

    def after_train(self, runner: Runner) -> None:
        """Publish what came after the last iteration, and end."""
        for source in self.sources.values():
            source.record_losses(None)
        self._unbind(runner)

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """Publish what is known; nothing that ranks would have to agree on."""
        self._unbind(runner)

    def newest_step(self, name: str) -> StepReport | None:
        """The newest step of a wrapper; None before the first one."""
        source = self.sources.get(name)
        return None if source is None else source.steps.newest

    def emit(self, runner: Runner, event: Event) -> None:
        """Publish an event to all hooks.

        Args:
            runner (Runner): The runner.
            event (Event): What happened.
        """
        runner.call_hook('after_event', event=event)
        if type(event) in _STAGES:
            stage, arguments = _STAGES[type(event)](event)
            runner.call_hook(stage, **arguments)

    def _publish(self, runner: Runner, outputs: Any = None) -> None:
        """Count, log and announce the reports that wait, in their order."""
        reports = self._reports
        if len(self.sources) > 1:
            reports.sort(key=lambda one: one[0].time)
        if len(runner.hooks) != self._hooks_seen:
            # What ``call_hook('after_step')`` would find every time.
            self._hooks_seen = len(runner.hooks)
            self._listeners = [
                hook.after_step
                for hook in runner.hooks
                if hasattr(hook, 'after_step')
            ]
        while reports:
            report, name_terms = reports.pop(0)
            name = report.wrapper
            steps = self.sources[name].steps
            if report.fault is not None:
                report = steps.complete(report, name_terms, outputs)
            tally = steps.tally
            tally.add(report)
            self._scalars[name].write(report, tally)
            for listen in self._listeners:
                listen(runner, name=name, report=report)
            if report.fault is not None:
                runner.call_hook('after_bad_step', report=report)
                self.emit(runner, report)
            before, after = self._scales[name], report.next_loss_scale
            if before is not None and before != after:
                self._scales[name] = after
                change = ScaleChange.now(
                    report.iteration,
                    wrapper=name,
                    loss_scale=before,
                    next_loss_scale=after,
                )
                self.emit(runner, change)

    def _unbind(self, runner: Runner) -> None:
        self._is_bound = False
        for name, source in self.sources.items():
            source.steps.subscribe(name, None)
            source.detach()
        self._publish(runner)

    def state_dict(self) -> dict[str, Any]:
        """The tallies of mmengine's wrappers; safe ones save their own."""
        tallies = {
            name: source.steps.tally.state_dict()
            for name, source in self.sources.items()
            if source.is_stock
        }
        return {'tallies': tallies} if tallies else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._saved_tallies = state['tallies']
