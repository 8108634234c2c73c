"""The hook that sees memory run out before the kernel ends the run."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from mmengine.dist import get_rank, get_world_size
from mmengine.runner import Runner

from mmstable import run_view
from mmstable.checkpoint.stop_signal import RESTART, SAVE
from mmstable.events.machine_records import MemoryAlarm
from mmstable.events.run_header import device_of
from mmstable.hooks.emergency_checkpoint_hook import EmergencyCheckpointHook
from mmstable.hooks.step_hook import StepHook
from mmstable.liveness.training_thread import TrainingThread
from mmstable.memory.alarm_text import (
    LOADING,
    describe_critical,
    describe_growth,
)
from mmstable.memory.device_memory import read_device
from mmstable.memory.figures import figures_of
from mmstable.memory.leaks import MAIN, Forecast, LeakDetector
from mmstable.memory.loading import (
    batches_of_data,
    halve_loading,
    loading_of,
)
from mmstable.memory.process_tree import Reading, read_tree
from mmstable.memory.sampler import TreeSampler
from mmstable.memory.sizes import parse_size, readable
from mmstable.messages import _
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import integer, number, one_of

_NAME = 'MemoryGuardHook'
_WARN, _SAVE, _LOWER, _RESTART = 'warn', 'save', 'lower_workers', 'restart'


@register_globally(HOOKS)
class MemoryGuardHook(StepHook):
    """Warn of leaks, and save before the kernel ends the run for memory.

    A thread looks at the host memory of this process and of all that it has
    started, at open files and at /dev/shm. If one of them grows steadily and
    would run out before the run ends, the hook tells how fast, how long that
    can go on, who leaks, and what helps. Two looks before the limit a
    checkpoint is saved, by :class:`EmergencyCheckpointHook`. Growth in the
    first pass over the data may be a cache: it counts only if the limit is
    reached within that pass.

    On a GPU the figures of its allocator are published, and a warning tells
    if it had to give back its cache to go on.

    Args:
        interval (float): Seconds between two looks. Defaults to 30.0.
        action (str): What is done. 'warn': nothing. 'save': save before the
            limit. 'lower_workers': with the warning of a leak in workers or
            shared memory, halve ``num_workers`` and ``prefetch_factor``, at
            the next epoch, or at once in iteration-based training; and save.
            'restart': save, and end with exit code 22, to be started again.
            Defaults to 'save'.
        host_limit (int or str, optional): Limit of the host memory of this
            process and of those it starts, in bytes or as '64GiB', where it
            is tighter than those of the machine and the control group.
            Defaults to None.
    """

    observes_stock = False

    def __init__(
        self,
        interval: float = 30.0,
        action: str = _SAVE,
        host_limit: int | str | None = None,
    ) -> None:
        interval = number(_NAME, 'interval', interval, above=0)
        self._action = one_of(
            _NAME, 'action', action, (_WARN, _SAVE, _LOWER, _RESTART)
        )
        limit = _check_limit(host_limit)
        self._sampler = TreeSampler(partial(read_tree, limit), interval)
        self._detector = LeakDetector(0)
        self._told_retries = 0
        self._has_to_lower = False

    def before_train(self, runner: Runner) -> None:
        """Begin to look."""
        super().before_train(runner)
        batches = batches_of_data(
            runner.train_loop.dataloader, get_world_size()
        )
        self._detector = LeakDetector(runner.max_iters, runner.iter + batches)
        self._has_to_lower = False
        self._sampler.start(TrainingThread().has_ended)

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
        outputs: dict | None = None,
    ) -> None:
        """Judge what the thread has seen, if there is something new."""
        if self._sampler.has_news:
            self._judge(runner, is_training=True)

    def after_val_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
        outputs: Any = None,
    ) -> None:
        """Look whether a limit is near; growth is none of training's."""
        if self._sampler.has_news:
            self._judge(runner, is_training=False)

    def after_val(self, runner: Runner) -> None:
        """Forget what was seen in validation."""
        self._sampler.take()

    def after_train_epoch(self, runner: Runner) -> None:
        """Let the next epoch be read by fewer workers, if it has to."""
        if self._has_to_lower:
            self._has_to_lower = False
            after = halve_loading(runner.train_loop.dataloader)
            if after is not None:
                text = _(LOADING, **after._asdict())
                runner.logger.warning(
                    _(
                        'mmstable: from the next pass over the data on: '
                        '{loading}.',
                        loading=text,
                    )
                )

    def after_train(self, runner: Runner) -> None:
        """End looking."""
        self._sampler.stop()

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """End looking."""
        self._sampler.stop()

    def _judge(self, runner: Runner, is_training: bool) -> None:
        reading, failure = self._sampler.take(), self._sampler.failure
        if failure is not None:
            self._sampler.failure = None
            reason = f'{type(failure).__name__}: {failure}'
            runner.logger.warning(
                _(
                    'MemoryGuardHook: host memory cannot be watched: '
                    '{reason}.',
                    reason=reason,
                )
            )
        if reading is None:
            return
        iteration = self.monitor.iteration
        found = self._detector.add(iteration, reading, is_training)
        for forecast in found:
            if is_training and self._detector.is_new(forecast, iteration):
                self._warn(runner, forecast, reading)
            if self._detector.becomes_critical(forecast, iteration):
                self._rescue(runner, forecast, reading)
        if is_training:
            self._publish(runner, reading)

    def _warn(
        self, runner: Runner, forecast: Forecast, reading: Reading
    ) -> None:
        loading = loading_of(runner.train_loop.dataloader)
        runner.logger.warning(
            describe_growth(self.monitor.iteration, forecast, reading, loading)
        )
        # Fewer workers are no help if the training process leaks.
        lowers = self._action == _LOWER and forecast.holder != MAIN
        self._emit(runner, forecast, reading, _LOWER if lowers else _WARN)
        if lowers:
            self._lower(runner)

    def _rescue(
        self, runner: Runner, forecast: Forecast, reading: Reading
    ) -> None:
        iteration = self.monitor.iteration
        action = _SAVE if self._action == _LOWER else self._action
        runs_out = self._detector.runs_out(forecast, iteration)
        if action == _RESTART and not runs_out:
            # What does not grow is there again after a start.
            action = _SAVE
        runner.logger.warning(describe_critical(iteration, forecast, action))
        self._emit(runner, forecast, reading, action)
        if action == _WARN:
            return
        saver = run_view.find_hook(runner, EmergencyCheckpointHook)
        if saver is None:
            runner.logger.warning(
                _(
                    'MemoryGuardHook: nothing is saved without '
                    'EmergencyCheckpointHook.'
                )
            )
            return
        number = RESTART if action == _RESTART else SAVE
        saver.request(_('MemoryGuardHook'), number)

    def _lower(self, runner: Runner) -> None:
        loop: Any = runner.train_loop
        if not hasattr(loop, 'restart_workers'):
            self._has_to_lower = True
            return
        after = halve_loading(loop.dataloader)
        if after is not None:
            loop.restart_workers()
            text = _(LOADING, **after._asdict())
            runner.logger.warning(
                _(
                    'mmstable: the data is read by new workers from here on: '
                    '{loading}. Their random augmentation differs from then '
                    'on.',
                    loading=text,
                )
            )

    def _emit(
        self,
        runner: Runner,
        forecast: Forecast,
        reading: Reading,
        action: str,
    ) -> None:
        loading = loading_of(runner.train_loop.dataloader)
        event = MemoryAlarm.now(
            self.monitor.iteration,
            resource=forecast.resource,
            holder=forecast.holder,
            used=forecast.used,
            limit=forecast.limit,
            left=forecast.left,
            source=forecast.source,
            action=action,
            rank=get_rank(),
            growth=forecast.per_iteration,
            iterations_left=_finite(forecast.iterations_left),
            seconds_left=_finite(forecast.seconds_left),
            workers_share=reading.workers / max(1, reading.tree),
            workers=loading.workers,
            prefetch=loading.prefetch,
        )
        self.monitor.emit(runner, event)

    def _publish(self, runner: Runner, reading: Reading) -> None:
        """Write the figures for dashboards; log lines are long enough."""
        device = read_device(device_of(runner.model))
        runner.visualizer.add_scalars(
            figures_of(reading, device), step=self.monitor.iteration
        )
        if device is not None and device.retries > self._told_retries:
            # The next time when there are twice as many.
            self._told_retries = 2 * device.retries
            runner.logger.warning(
                _(
                    'Iter {iteration}: the device ran short of memory and '
                    'everything cached was given back ({count:time|times}): '
                    '{allocated} in tensors, {reserved} reserved. If these '
                    'differ much, set '
                    'PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.',
                    iteration=self.monitor.iteration,
                    count=device.retries,
                    allocated=readable(device.allocated),
                    reserved=readable(device.reserved),
                )
            )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _check_limit(value: int | str | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return parse_size(value)
        except ValueError as error:
            raise ValueError(f'{_NAME}: `host_limit`: {error}.') from None
    return integer(_NAME, 'host_limit', value)
