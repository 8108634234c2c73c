"""A few iterations whose times are taken."""

from __future__ import annotations

import time
from typing import Any

from mmengine.runner import Runner

from mmstable import run_view
from mmstable.events.run_header import device_of
from mmstable.liveness.instruments import Instruments
from mmstable.liveness.loading_watch import Loading, LoadingWatch
from mmstable.liveness.profile import Mark, Profile, summarize
from mmstable.liveness.spans import (
    VALIDATION,
    Span,
    SpanRecorder,
    device_clock,
)


class IterationSample:
    """Takes the times of all iterations from now on, until it is stopped.

    Args:
        runner (Runner): The runner, after an iteration.
        hook (Any): The hook that calls :meth:`mark` after each of them.
        depth (int): How deep to look into the model.
        annotates (bool): Whether torch's profiler is told of all spans.
            Defaults to False.
    """

    def __init__(
        self, runner: Runner, hook: Any, depth: int, annotates: bool = False
    ) -> None:
        clock = device_clock(device_of(runner.model))
        self._recorder = SpanRecorder(clock, annotates)
        self._instruments = Instruments(self._recorder)
        self._sees_inside = not run_view.is_compiled(runner.model)
        self._instruments.watch_hooks(runner.hooks, hook)
        if self._sees_inside:
            # In a compiled model, that would compile it again.
            model = run_view.saved_model(runner)
            self._instruments.watch_wrappers(run_view.wrappers(runner))
            self._instruments.watch_modules(model, depth)
        self._watch = LoadingWatch()
        self._marks: list[Mark] = []
        self.mark()

    def mark(self) -> int:
        """End an iteration; how many there were."""
        clock = self._recorder.clock
        self._marks.append(Mark(clock(), time.thread_time()))
        return len(self._marks) - 1

    def leave_out(self, start: float, stop: float) -> None:
        """Leave out a validation, by :func:`time.perf_counter`."""
        self._recorder.spans.append(
            Span(VALIDATION, '', start, stop, 0.0, is_inner=False)
        )

    def stop(self) -> tuple[Profile, Loading]:
        """End it, and tell what was seen."""
        self._instruments.remove()
        loading = self._watch.stop()
        spans = self._recorder.spans
        return summarize(spans, self._marks, self._sees_inside), loading
