"""A few iterations by torch's profiler, after all else was measured."""

from __future__ import annotations

from pathlib import Path

from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.profiler import ProfilerActivity, profile

from mmstable.errors import MMStableError
from mmstable.events.run_header import device_of
from mmstable.hooks import IterProfileHook
from mmstable.liveness.iteration_sample import IterationSample

# Iterations of a trace, which has a line for every operation.
TRACED = 3
_DEPTH = 3


class Measured(MMStableError):
    """All was measured: training can end, in whatever loop."""


class TraceHook(Hook):
    """Traces iterations when a sample is complete, and ends training.

    Args:
        hook (IterProfileHook): Takes the sample.
        path (Path, optional): Where the trace goes; None for no trace, as on
            all ranks but the first one.
    """

    # After the other one, which has the same priority.
    priority = 'LOWEST'

    def __init__(self, hook: IterProfileHook, path: Path | None) -> None:
        self._hook, self._path = hook, path
        self._profiler: profile | None = None
        self._sample: IterationSample | None = None
        self._count = 0

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
        outputs: dict | None = None,
    ) -> None:
        """Begin, or end."""
        if self._hook.sample is None:
            return
        if self._count == 0:
            self._start(runner)
        self._count += 1
        if self._count > TRACED:
            self._stop()
            raise Measured('')

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """End, with what there is."""
        self._stop()

    def _start(self, runner: Runner) -> None:
        if self._path is None:
            return
        kinds = [ProfilerActivity.CPU]
        if device_of(runner.model).type == 'cuda':
            kinds.append(ProfilerActivity.CUDA)
        self._profiler = profile(activities=kinds)
        self._profiler.__enter__()
        self._sample = IterationSample(runner, self, _DEPTH, annotates=True)

    def _stop(self) -> None:
        sample, self._sample = self._sample, None
        profiler, self._profiler = self._profiler, None
        if sample is not None:
            sample.stop()
        if profiler is not None:
            profiler.__exit__(None, None, None)
            profiler.export_chrome_trace(str(self._path))
