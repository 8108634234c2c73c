"""The hook that reports why training is slow."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from mmengine.dist import get_rank
from mmengine.hooks.hook import DATA_BATCH
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.events.records import IterationProfile
from mmstable.hooks.step_hook import StepHook
from mmstable.messages import _
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import integer, language, refuse

if TYPE_CHECKING:
    from mmstable.profile.causes import Between, Cause, Sample
    from mmstable.profile.measure import IterationSample

_NAME = 'IterProfileHook'
# Hooks and modules of a record.
_MOST = 10


@register_globally(HOOKS)
class IterProfileHook(StepHook):
    """Report where the time of an iteration goes, and what makes it slow.

    A few iterations at intervals are measured: waiting for data, forward,
    backward, step, every hook by its class, every module to some depth. While
    training waits for data, a thread reads the state of the workers. With
    several ranks, the one that others wait for is named. All other iterations
    have no overhead. A new cause is logged; the event file gets every sample.

    On a GPU, measured iterations synchronize the device at every boundary, so
    that each part is charged its own time.

    Args:
        interval (int): Iterations between two samples. Defaults to 500.
        iterations (int): Iterations of a sample. Defaults to 10.
        begin (int): Iterations before the first sample, which are slow by
            nature. Defaults to 50.
        depth (int): How many module names deep to measure, such as 2 for
            'backbone.layer3'. Defaults to 2.
        lang (str, optional): Language of all log lines of the run, 'en' or
            'zh_cn'. Defaults to None, which means that of another hook, or
            of the environment variable ``MMSTABLE_LANG``, or English.
    """

    # After all other hooks: the rest of an iteration is waiting for data.
    priority = 'LOWEST'
    observes_stock = False

    def __init__(
        self,
        interval: int = 500,
        iterations: int = 10,
        begin: int = 50,
        depth: int = 2,
        lang: str | None = None,
    ) -> None:
        self.lang = language(_NAME, lang)
        self._interval = integer(_NAME, 'interval', interval)
        self._iterations = integer(_NAME, 'iterations', iterations)
        if self._iterations >= self._interval:
            rule = _(
                'less than `interval`, which is {interval}',
                interval=self._interval,
            )
            refuse(_NAME, 'iterations', rule, iterations)
        self._begin = integer(_NAME, 'begin', begin)
        self._depth = integer(_NAME, 'depth', depth)
        # The newest sample and its causes.
        self.sample: Sample | None = None
        self.causes: list[Cause] = []
        self._running: IterationSample | None = None
        self._next = 0
        # Causes that were logged; None before the first line.
        self._logged: set[tuple[str, str]] | None = None
        self._is_repeated: bool
        # When training began, until the first validation.
        self._trained_since: float | None = None
        self._reset()

    def before_train(self, runner: Runner) -> None:
        """Wait for the first iterations."""
        super().before_train(runner)
        self.close(runner)
        self.sample, self._logged = None, None
        self._trained_since = time.perf_counter()
        self._next = runner.iter + self._begin
        if runner_view.is_compiled(runner.model):
            runner.logger.info(
                _(
                    'IterProfileHook: the model is compiled, and timers '
                    'inside it would trigger a recompilation; its training '
                    'step is measured as a whole.'
                )
            )

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: DATA_BATCH = None,
        outputs: dict | None = None,
    ) -> None:
        """Start a sample if it is due, and finish it."""
        if self.monitor.iteration >= self._next:
            if self._running is None:
                self._between = self._since_last()
                self._begin_sample(runner)
            elif self._running.mark() == self._iterations:
                if self._has_to_repeat():
                    self.close(runner)
                    self._begin_sample(runner)
                else:
                    self._finish(runner)

    def _begin_sample(self, runner: Runner) -> None:
        from mmstable.profile.measure import IterationSample

        self._running = IterationSample(runner, self, self._depth)
        self._saved_before = self._checkpoints

    def _has_to_repeat(self) -> bool:
        """Whether a checkpoint was saved meanwhile, which is rare.

        If one is saved again, saving is a part of normal iterations.
        """
        has_saved = self._checkpoints > self._saved_before
        self._is_repeated = has_saved and not self._is_repeated
        return self._is_repeated

    def before_train_epoch(self, runner: Runner) -> None:
        """Count them for the time between samples."""
        self._epochs += 1

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Count them for the time between samples."""
        super().before_save_checkpoint(runner, checkpoint)
        self._checkpoints += 1

    def before_val(self, runner: Runner) -> None:
        """Note the start of a validation."""
        self._val_begin = time.perf_counter()

    def after_val(self, runner: Runner) -> None:
        """Exclude the validation from the sample."""
        now = time.perf_counter()
        self._validation += now - self._val_begin
        if self._running is not None:
            self._running.leave_out(self._val_begin, now)
        if self._trained_since is not None and get_rank() == 0:
            # The first one tells already what all of them are going to take.
            from mmstable.profile.causes import describe_validation

            share = (now - self._val_begin) / (now - self._trained_since)
            text = describe_validation(share)
            if text:
                self._logged = {('validation', ''), *(self._logged or ())}
                runner.logger.warning(text)
            self._trained_since = None

    def close(self, runner: Runner) -> None:
        """Discard a sample that is not complete."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()

    def _reset(self) -> None:
        self._since = time.perf_counter()
        self._since_iteration = 0
        self._validation = 0.0
        self._checkpoints = self._epochs = 0
        self._saved_before = 0
        self._is_repeated = False
        self._val_begin = 0.0

    def _since_last(self) -> Between:
        from mmstable.profile.causes import Between

        if self.sample is None:
            # The first iterations are slow by nature.
            return Between()
        return Between(
            time.perf_counter() - self._since,
            self._validation,
            self.monitor.iteration - self._since_iteration,
            self._checkpoints,
            self._epochs,
        )

    def _finish(self, runner: Runner) -> None:
        from mmstable.memory.host import loading_of
        from mmstable.profile import causes
        from mmstable.profile.measure import gpu_busy

        running, self._running = self._running, None
        if running is None:
            return
        profile, loading = running.stop()
        self.sample = causes.Sample(
            profile,
            loading,
            loading_of(runner.train_loop.dataloader).workers,
            causes.cores_of_rank(),
            self._between,
            causes.gather_times(profile),
            gpu_busy(runner_view.device_of(runner.model)),
        )
        self.causes = causes.find_causes(self.sample)
        iteration = self.monitor.iteration
        self._next = iteration + self._interval - self._iterations
        if get_rank() == 0:
            self._report(runner, iteration)
        self._reset()
        self._since_iteration = iteration

    def _report(self, runner: Runner, iteration: int) -> None:
        from mmstable.profile.causes import (
            describe_profile,
            slowest_transform,
        )

        sample, causes = self.sample, self.causes
        if sample is None:
            return
        if any(cause.kind == 'data' for cause in causes):
            dataset = runner.train_loop.dataloader.dataset
            sample = replace(sample, transform=slowest_transform(dataset))
        text = describe_profile(iteration, sample, causes)
        found = {(cause.kind, cause.name) for cause in causes}
        if self._logged is None or found - self._logged:
            log = runner.logger.warning if causes else runner.logger.info
            log(text)
        self._logged = found | (self._logged or set())
        profile, seconds = sample.profile, sample.profile.seconds
        figures = {'data_share': profile.data_share, 'seconds': seconds}
        runner.visualizer.add_scalars(
            {f'train/stable/profile/{k}': v for k, v in figures.items()},
            step=iteration,
        )
        late = next((one for one in causes if one.kind == 'straggler'), None)
        event = IterationProfile.now(
            iteration,
            iterations=profile.iterations,
            seconds=seconds,
            causes=tuple(cause.kind for cause in causes),
            text=text,
            phases=profile.phases,
            hooks=_first(profile.hooks),
            modules=_first(profile.modules),
            workers=sample.workers,
            loading=sample.loading.state,
            straggler=None if late is None else late.number,
            behind=0.0 if late is None else late.seconds,
            gpu_busy=sample.gpu_busy,
        )
        self.monitor.emit(runner, event)


def _first(times: dict[str, float]) -> dict[str, float]:
    return dict(islice(times.items(), _MOST))
