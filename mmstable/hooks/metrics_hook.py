"""The hook that writes metrics for Prometheus."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Optional

from mmengine.dist import get_rank
from mmengine.hooks.hook import DATA_BATCH
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.errors import StoppedBySignal, TrainingDiverged
from mmstable.events.log import restarts
from mmstable.events.records import Event, Intervention
from mmstable.events.samples import (
    IterationTimer,
    device_memory,
    host_memory,
    read_losses,
    sample_wrapper,
)
from mmstable.hooks.step_hook import StepHook
from mmstable.io.files import replace_text
from mmstable.messages import N_, _
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import number, text

VARIABLE = 'MMSTABLE_METRICS'
_STATES = ('running', 'finished', 'stopped', 'failed')
# Name, type and help of each metric, in the order of the file.
METRICS = {
    'run_state': ('gauge', 'Whether the run is in this state.'),
    'updated_timestamp_seconds': ('gauge', 'When this file was written.'),
    'iterations_total': ('counter', 'Training iterations done.'),
    'iterations_planned': ('gauge', 'Iterations that the run ends with.'),
    'iteration_seconds': ('gauge', 'Mean seconds for an iteration.'),
    'goodput_ratio': ('gauge', 'Useful training time over wall time.'),
    'restarts_total': ('counter', 'Automatic restarts of the run.'),
    'steps_applied_total': ('counter', 'Optimizer steps applied.'),
    'steps_skipped_total': ('counter', 'Optimizer steps skipped, by fault.'),
    'events_total': ('counter', 'Events of the event file, by kind.'),
    'loss': ('gauge', 'The newest losses.'),
    'learning_rate': ('gauge', 'Learning rate of the first group.'),
    'grad_norm': ('gauge', 'Gradient norm before clipping.'),
    'loss_scale': ('gauge', 'The loss scale.'),
    'host_memory_bytes': ('gauge', 'Resident memory of the process.'),
    'device_memory_bytes': ('gauge', 'Memory allocated on the device.'),
}
Samples = Iterator[tuple[str, Mapping[str, str], Optional[float]]]


@register_globally(HOOKS)
class MetricsHook(StepHook):
    """Write metrics as a text file for Prometheus.

    The textfile collector of node_exporter reads it. Rank 0 writes it, as a
    whole or not at all. Without a folder the hook does nothing.

    Args:
        folder (str, optional): Where the file goes. Defaults to None, which
            means the environment variable ``MMSTABLE_METRICS``.
        interval (float): Seconds between two writes. Defaults to 15.0.
    """

    observes_stock = True

    def __init__(
        self, folder: str | None = None, interval: float = 15.0
    ) -> None:
        if folder is not None:
            text('MetricsHook', 'folder', folder)
        self._folder = folder
        self._interval = number('MetricsHook', 'interval', interval, above=0)
        self._path: Path | None = None
        self._labels: dict[str, str] = {}
        self._events: Counter[str] = Counter()
        self._timer: IterationTimer | None = None
        self._begun = self._written = self._busy_s = 0.0
        # Iterations before this start, at the last write, and undone since.
        self._first = self._last = self._undone = 0
        self._seconds: float | None = None
        self._losses: dict[str, float] = {}

    def before_run(self, runner: Runner) -> None:
        """Find the folder."""
        super().before_run(runner)
        folder = self._folder or os.environ.get(VARIABLE)
        if not folder or get_rank() != 0:
            self._path = None
            return
        work_dir = Path(runner.work_dir).resolve()
        name, host = work_dir.name, platform.node()
        digest = hashlib.sha256(os.fsencode(work_dir)).hexdigest()[:8]
        self._path = Path(folder, f'mmstable_{name}_{digest}.prom')
        self._labels = {'run': name, 'rank': '0', 'host': host}
        self._begun = time.monotonic()
        self.after_train_iter = self._sample

    def before_train(self, runner: Runner) -> None:
        """Begin to count."""
        super().before_train(runner)
        self._first = self._last = runner_view.iterations_done(runner)
        self._busy_s, self._undone, self._timer = 0.0, 0, None
        self._write(runner, 'running')

    def _sample(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: DATA_BATCH = None,
        outputs: dict | None = None,
    ) -> None:
        if self._timer is None:
            self._timer = IterationTimer(self.monitor.iteration - 1)
        if time.monotonic() - self._written >= self._interval:
            self._losses = read_losses(outputs)
            self._write(runner, 'running')

    def before_val(self, runner: Runner) -> None:
        """Keep validation out of the iteration time."""
        if self._timer is not None:
            self._timer.pause()

    def after_val(self, runner: Runner) -> None:
        """Count time again."""
        if self._timer is not None:
            self._timer.go_on()

    def after_event(self, runner: Runner, event: Event) -> None:
        """Count events."""
        self._events[event.event] += 1
        if isinstance(event, Intervention) and event.restored is not None:
            self._undone += max(0, event.iteration - event.restored)

    def after_train(self, runner: Runner) -> None:
        """Write the end."""
        is_done = runner.iter >= runner.max_iters
        self._write(runner, 'finished' if is_done else 'stopped')
        super().after_train(runner)

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """Write that it failed."""
        is_stop = isinstance(exception, (StoppedBySignal, TrainingDiverged))
        self._write(runner, 'stopped' if is_stop else 'failed')
        super().on_exception(runner, exception)

    def _write(self, runner: Runner, state: str) -> None:
        if self._path is None:
            return
        self._written = time.monotonic()
        content = render(self._labels, self._collect(runner, state))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(self._path, content, 'utf-8', sync=False)
        except OSError as error:
            self._path = None
            del self.after_train_iter
            text = N_(
                'mmstable: MetricsHook: cannot write metrics: {error}. '
                'Training continues without them.'
            )
            runner.logger.warning(_(text, error=error))

    def _collect(self, runner: Runner, state: str) -> Samples:
        done = runner_view.iterations_done(runner)
        if self._timer is not None and done > self._last:
            self._seconds = self._timer.lap(done) or self._seconds
            self._busy_s += (self._seconds or 0.0) * (done - self._last)
            self._last = done
        for one in _STATES:
            yield 'run_state', {'state': one}, float(one == state)
        yield 'updated_timestamp_seconds', {}, time.time()
        yield 'iterations_total', {}, done
        yield 'iterations_planned', {}, runner.max_iters
        tallies = {
            name: source.steps.tally
            for name, source in self.monitor.sources.items()
        }
        if self._seconds is not None:
            here = max(1, done - self._first)
            lost = sum(one.skipped for one in tallies.values()) + self._undone
            useful_s = self._busy_s * max(0.0, 1 - lost / here)
            wall_s = max(1e-9, time.monotonic() - self._begun)
            yield 'iteration_seconds', {}, self._seconds
            yield 'goodput_ratio', {}, min(1.0, useful_s / wall_s)
        yield 'restarts_total', {}, restarts()
        for name, tally in tallies.items():
            yield 'steps_applied_total', {'wrapper': name}, tally.applied
            for fault in tally.faults or ['']:
                labels = {'wrapper': name, 'fault': fault}
                yield 'steps_skipped_total', labels, tally.faults[fault]
        for kind, count in self._events.items():
            yield 'events_total', {'event': kind}, count
        for name, loss in self._losses.items():
            yield 'loss', {'name': name}, loss
        for name, wrapper in runner_view.wrappers(runner).items():
            newest = self.monitor.newest_step(name)
            sample = sample_wrapper(wrapper, newest, {})
            yield 'learning_rate', {'wrapper': name}, sample.lr
            yield 'grad_norm', {'wrapper': name}, sample.grad_norm
            yield 'loss_scale', {'wrapper': name}, sample.loss_scale
        yield 'host_memory_bytes', {}, host_memory()
        device = runner_view.device_of(runner.model)
        yield 'device_memory_bytes', {}, device_memory(device)[0]


def render(labels: Mapping[str, str], samples: Samples) -> str:
    """Return samples in the text format of Prometheus.

    Args:
        labels (Mapping): Those of every sample.
        samples (Iterator): Name of the metric, further labels, and value.
    """
    groups: dict[str, list[str]] = {}
    for name, more, value in samples:
        if value is None:
            continue
        pairs = {**labels, **more}.items()
        inner = ','.join(f'{k}="{_escape(str(v))}"' for k, v in pairs)
        number = repr(float(value)).replace('nan', 'NaN').replace('inf', 'Inf')
        line = f'mmstable_{name}{{{inner}}} {number}'
        groups.setdefault(name, []).append(line)
    lines = []
    for name, (kind, about) in METRICS.items():
        if name in groups:
            lines += [
                f'# HELP mmstable_{name} {about}',
                f'# TYPE mmstable_{name} {kind}',
                *groups[name],
            ]
    return '\n'.join(lines) + '\n'


def _escape(value: str) -> str:
    escaped = value.replace('\\', r'\\').replace('"', r'\"')
    return escaped.replace('\n', r'\n')
