"""The one that knows of all optimizer steps of a run, and tells all hooks."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Callable, Protocol

from mmengine.runner import Runner

from mmstable import run_view
from mmstable.checked_json import mapping_of, record, text
from mmstable.events.event import Event
from mmstable.events.records import (
    Injection,
    Intervention,
    Poisoned,
    ScaleChange,
)
from mmstable.events.samples import read_scale
from mmstable.events.stateful_hook import StatefulHook
from mmstable.events.step_queue import StepQueue
from mmstable.events.step_report import StepReport
from mmstable.events.step_scalars import StepScalars
from mmstable.events.step_tally import StepTally

# Stages that tell of one kind of event: name, and what they are called with.
_STAGES: dict[type, Callable[[Any], tuple[str, dict[str, Any]]]] = {
    Intervention: lambda e: ('after_intervention', {'intervention': e}),
    Injection: lambda e: ('after_fault_injected', {'fault': e}),
    Poisoned: lambda e: ('after_poisoned', {'culprits': e.culprits}),
}


class StepSource(Protocol):
    """A safe wrapper, or the observer of one of mmengine's."""

    steps: StepQueue
    is_stock: bool

    def subscribe(
        self, name: str, publish: Callable[[StepReport], None]
    ) -> None:
        """Have all steps from now on published, under this name."""

    def unsubscribe(self) -> None:
        """End that; what still waits is published first."""

    def record_losses(self, outputs: Any) -> None:
        """Resolve and publish the steps of an iteration that is over."""


class RunMonitor(StatefulHook):
    """Publishes every step of every wrapper to all hooks of a runner.

    There is one for each runner, found by :meth:`of`. Any hook can listen::

        after_step(runner, name, report)     every optimizer step
        after_bad_step(runner, report)       every step with a fault
        after_event(runner, event)           whatever else is worth a record

    Args:
        find_sources (Callable): Gives the sources of steps of a runner, by
            the name of their wrapper.
    """

    # After RuntimeInfoHook (VERY_HIGH) has read the loss, so that reading
    # the verdict of a step waits for nothing; before all that listen (HIGH).
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
        self._queue: deque[StepReport] = deque()
        self._scalars: dict[str, StepScalars] = {}
        self._scales: dict[str, float | None] = {}
        self._saved_tallies: Mapping[str, Any] = {}
        self._hooks_seen = 0
        self._listeners: list[Callable[..., None]] = []

    @classmethod
    def of(cls, runner: Runner) -> RunMonitor | None:
        """The monitor of a runner, if it has one."""
        return run_view.find_hook(runner, cls)

    def bind(self, runner: Runner) -> None:
        """Subscribe to all wrappers of a run that is about to train."""
        if self._is_bound:
            return
        self._is_bound = True
        self._hooks_seen = 0
        self.iteration = runner.iter
        self.sources = self._find_sources(runner)
        wrappers = run_view.wrappers(runner)
        for name, source in self.sources.items():
            wrapper = wrappers[name]
            scale = read_scale(wrapper)
            self._scales[name] = scale
            self._scalars[name] = StepScalars(
                runner.message_hub,
                name if len(wrappers) > 1 else '',
                scaled=scale is not None,
                with_norm=not (source.is_stock and _clips(wrapper)),
            )
            source.subscribe(name, self._queue.append)
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
        if len(self.sources) > 1:
            self._sort()
        while self._queue:
            self._publish(runner, self._queue.popleft())

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
        """Tell all hooks of an event.

        Args:
            runner (Runner): The runner.
            event (Event): What happened.
        """
        runner.call_hook('after_event', event=event)
        if type(event) in _STAGES:
            stage, arguments = _STAGES[type(event)](event)
            runner.call_hook(stage, **arguments)

    def _sort(self) -> None:
        """Bring what several wrappers have reported in order of its steps."""
        in_order = sorted(self._queue, key=attrgetter('time'))
        self._queue.clear()
        self._queue.extend(in_order)

    def _publish(self, runner: Runner, report: StepReport) -> None:
        name = report.wrapper
        tally = self.sources[name].steps.tally
        tally.add(report)
        self._scalars[name].write(report, tally)
        for listen in self._listeners_of(runner):
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

    def _listeners_of(self, runner: Runner) -> list[Callable[..., None]]:
        """What ``call_hook('after_step')`` would call in every iteration."""
        if len(runner.hooks) != self._hooks_seen:
            self._hooks_seen = len(runner.hooks)
            self._listeners = [
                hook.after_step
                for hook in runner.hooks
                if hasattr(hook, 'after_step')
            ]
        return self._listeners

    def _unbind(self, runner: Runner) -> None:
        self._is_bound = False
        for source in self.sources.values():
            source.unsubscribe()
        self._sort()
        while self._queue:
            self._publish(runner, self._queue.popleft())

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


def _clips(wrapper: Any) -> bool:
    return bool(getattr(wrapper, 'clip_grad_kwargs', None))
