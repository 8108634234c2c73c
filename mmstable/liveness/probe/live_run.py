"""A run that is being trained, as ``mmstable probe`` sees it."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mmengine.dist import get_rank, get_world_size
from mmengine.runner import Runner

from mmstable import run_view
from mmstable.background import thread_frames
from mmstable.events.event import Event
from mmstable.events.live_records import LiveChange
from mmstable.events.run_monitor import RunMonitor
from mmstable.events.samples import read_scale
from mmstable.events.step_report import StepReport
from mmstable.liveness.calls import blamed, calls_of
from mmstable.liveness.phases import find_phase
from mmstable.liveness.probe.agreed_changes import (
    INTERVAL,
    AgreedChanges,
    check_change,
)
from mmstable.liveness.probe.boundary import Boundary
from mmstable.liveness.probe.live_clip import read_clip, set_clip
from mmstable.liveness.probe.live_rates import LiveRates
from mmstable.liveness.training_thread import TrainingThread
from mmstable.messages import _

# Bad steps and events that are remembered.
_MOST_KEPT = 100
# Characters of code in an event.
_LONGEST_CODE = 500
_FACTOR_KEY = 'train/stable/live_lr_factor'


class LiveRun:
    """What can be read from a run, and changed in it.

    Reading is possible from any thread, changing only from the one that
    trains: between two steps, see :class:`Boundary`.

    Args:
        runner (Runner): The runner.
        monitor (RunMonitor): Tells of steps and events.
    """

    def __init__(self, runner: Runner, monitor: RunMonitor) -> None:
        self.runner = runner
        self.boundary = Boundary()
        self.rates = LiveRates()
        self.clips: dict[str, float] = {}
        self.bad_steps: deque[StepReport] = deque(maxlen=_MOST_KEPT)
        self.events: deque[Event] = deque(maxlen=_MOST_KEPT)
        self._monitor = monitor
        self.thread = TrainingThread()
        # Whether other ranks have to make the same changes.
        self.is_shared = get_world_size() > 1
        self._changes: AgreedChanges | None = None
        if self.is_shared:
            self._changes = AgreedChanges(self._apply, self._groups)

    def begin(self) -> None:
        """Training is about to begin; changes of before it was resumed."""
        self.rates.bind(run_view.optimizers(self.runner))
        for name, limit in self.clips.items():
            if name in run_view.wrappers(self.runner):
                self._set_clip(name, limit)

    def end(self) -> None:
        """Training is over."""
        self.boundary.close()
        self.rates.unbind()

    def look(self, iteration: int) -> None:
        """Make changes that other ranks have asked for, now and then."""
        if self._changes is not None and iteration % INTERVAL == 0:
            self._changes.look(iteration)

    @property
    def iteration(self) -> int:
        """Training iterations done."""
        return run_view.iterations_done(self.runner)

    def status(self) -> dict[str, Any]:
        """Where the run is, in plain types."""
        runner, calls = self.runner, self.thread.calls()
        call = blamed(calls)
        wrappers = run_view.wrappers(runner)
        return dict(
            pid=os.getpid(),
            host=platform.node(),
            rank=get_rank(),
            world_size=get_world_size(),
            work_dir=os.path.realpath(runner.work_dir),
            log_dir=os.path.realpath(runner.log_dir),
            iteration=self.iteration,
            max_iters=int(runner.max_iters),
            epoch=int(runner.epoch),
            phase=str(find_phase(calls)),
            line='' if call is None else str(call),
            lr={n: v[0] for n, v in self.rates.rates().items() if v},
            lr_factors={n: v[0] for n, v in self.rates.factors.items() if v},
            clip={name: self.read_clip(name) for name in wrappers},
            loss_scale={n: read_scale(w) for n, w in wrappers.items()},
            skipped={
                name: source.steps.tally.skipped
                for name, source in self._monitor.sources.items()
            },
            checkpoint=self._checkpoint(),
        )

    def speed(self, seconds: float) -> float | None:
        """Mean seconds for an iteration, watched for some seconds."""
        before, start = self.iteration, time.monotonic()
        time.sleep(seconds)
        done = self.iteration - before
        return (time.monotonic() - start) / done if done > 0 else None

    def stacks(self) -> list[tuple[str, list[str]]]:
        """The calls of all threads, the outermost first, that trains first."""
        return [
            (
                name,
                [
                    f'{call.file}:{call.line} {call.function}'
                    for call in calls_of(frame)
                ],
            )
            for ident, name, frame in thread_frames(self.thread.ident)
            if ident != threading.get_ident()
        ]

    def read_clip(self, name: str) -> float | str | None:
        """The clip limit of a wrapper; other kinds of clipping in words."""
        return read_clip(
            run_view.wrappers(self.runner)[name],
            self._monitor.sources.get(name),
        )

    def change_lr(self, name: str, ratios: list[float]) -> None:
        """Multiply the learning rates of a wrapper, on all ranks."""
        self._request(dict(what='lr', wrapper=name, values=ratios))

    def change_clip(self, name: str, limit: float) -> None:
        """Change the clip limit of a wrapper, on all ranks."""
        self._request(dict(what='clip', wrapper=name, values=[limit]))

    @contextmanager
    def noticing_changes(self, code: str) -> Iterator[list[str]]:
        """Turn learning rates that code changes into factors.

        Not if it runs on another thread than the one that trains, which may
        be about to change them, too.
        """
        notes: list[str] = []
        if not self.thread.is_current:
            self._note_code(code)
            yield notes
            return
        ratios: dict[str, list[float]] = {}
        before = self.rates.rates()
        try:
            with self.rates.shown() as own:
                try:
                    yield notes
                finally:
                    ratios = self._changed(before, own)
        finally:
            self._note_code(code)
            for name, several in ratios.items():
                try:
                    self.change_lr(name, several)
                except ValueError:
                    notes.append(
                        _(
                            '[mmstable: {wrapper}: a learning rate must stay '
                            'above 0; that of the schedule is used]',
                            wrapper=name,
                        )
                    )
                else:
                    notes.append(self._describe(name, several))

    def note(self, what: str, **facts: Any) -> None:
        """Record what was asked for."""
        event = LiveChange.now(
            self.iteration, what=what, rank=get_rank(), **facts
        )
        self._monitor.emit(self.runner, event)

    def _note_code(self, code: str) -> None:
        self.note('code', text=code.strip()[:_LONGEST_CODE])

    def _request(self, change: dict[str, Any]) -> None:
        if self._changes is None:
            self._apply(check_change(change, self._groups()))
        else:
            self._changes.request(change)

    def _groups(self) -> dict[str, int]:
        optimizers = run_view.optimizers(self.runner)
        return {n: len(one.param_groups) for n, one in optimizers.items()}

    def _apply(self, change: dict[str, Any]) -> None:
        name, values = change['wrapper'], change['values']
        if change['what'] == 'lr':
            before = self.rates.rates()[name][0]
            self.rates.multiply(name, values)
            after = self.rates.rates()[name][0]
            self._show(name)
            self.note('lr', wrapper=name, before=before, after=after)
        else:
            old = self.read_clip(name)
            self._set_clip(name, values[0])
            self.note(
                'clip',
                wrapper=name,
                before=old if isinstance(old, (int, float)) else None,
                after=values[0],
            )

    def _show(self, name: str) -> None:
        """Let log lines have the factor; mmengine logs the schedule's rate."""
        many = run_view.has_many_wrappers(self.runner)
        key = f'{_FACTOR_KEY}/{name}' if many else _FACTOR_KEY
        factor = self.rates.factors[name][0]
        self.runner.message_hub.update_scalar(key, factor)

    def _set_clip(self, name: str, limit: float) -> None:
        self.clips[name] = limit
        set_clip(
            run_view.wrappers(self.runner)[name],
            limit,
            self._monitor.sources.get(name),
        )

    def _changed(
        self, before: dict[str, list[float]], own: list[tuple[dict, Any]]
    ) -> dict[str, list[float]]:
        """What code has multiplied learning rates by, where it has."""
        found: dict[str, list[float]] = {}
        for name, one in run_view.optimizers(self.runner).items():
            now = [float(group['lr']) for group in one.param_groups]
            ratios = [
                new / old if old else 1.0
                for old, new in zip(before[name], now)
            ]
            if any(ratio != 1.0 for ratio in ratios):
                found[name] = ratios
        # A rate of 0 has no factor: what was written there stays.
        for index, (group, rate) in enumerate(own):
            if rate == 0:
                own[index] = (group, group['lr'])
        return found

    def _describe(self, name: str, ratios: list[float]) -> str:
        facts = dict(wrapper=name, factor=ratios[0])
        if self.is_shared:
            return _(
                '[mmstable: {wrapper}: learning rate times {factor:g} on ALL '
                'ranks within {count} iterations; do not repeat it on the '
                'others]',
                **facts,
                count=2 * INTERVAL,
            )
        return _(
            '[mmstable: {wrapper}: learning rate times {factor:g} from '
            'iteration {iteration} on, whatever the schedule does]',
            **facts,
            iteration=self.iteration + 1,
        )

    def _checkpoint(self) -> str:
        info = self.runner.message_hub.runtime_info
        return str(info.get('last_ckpt') or '')
