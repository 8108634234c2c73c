"""The hook that saves before memory runs out."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from mmengine.dist import get_rank, get_world_size
from mmengine.hooks.hook import DATA_BATCH
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.checkpoint.signals import SAVE, Request
from mmstable.events.records import MemoryAlarm
from mmstable.hooks.emergency_checkpoint_hook import EmergencyCheckpointHook
from mmstable.hooks.step_hook import StepHook
from mmstable.messages import _
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import integer, number, one_of

if TYPE_CHECKING:
    from mmstable.memory.host import Reading
    from mmstable.memory.leaks import Forecast

_NAME = 'MemoryGuardHook'
_WARN, _SAVE, _LOWER, _RESTART = 'warn', 'save', 'lower_workers', 'restart'


@register_globally(HOOKS)
class MemoryGuardHook(StepHook):
    """Warn of leaks, and save a checkpoint before the OOM killer acts.

    A thread reads the host memory of this process and its children, its open
    files and /dev/shm. If one of them grows steadily and would run out before
    the run ends, the log names the rate, the time left, the process that
    leaks, and what helps. Two readings before the limit
    :class:`EmergencyCheckpointHook` saves a checkpoint. Growth in the first
    pass over the data may be a cache: it counts only if the limit is reached
    within that pass.

    On a GPU the statistics of the allocator are logged as scalars, and a
    warning is logged if it had to release its cache.

    Args:
        interval (float): Seconds between two readings. Defaults to 30.0.
        action (str): 'warn': only log. 'save': save before the limit.
            'lower_workers': on a leak in workers or shared memory, halve
            ``num_workers`` and ``prefetch_factor``, at the next epoch, or at
            once in iteration-based training; and save. 'restart': save, and
            exit with code 22, to be restarted. Defaults to 'save'.
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
        from mmstable.memory.host import read_tree
        from mmstable.memory.leaks import LeakDetector, TreeSampler

        interval = number(_NAME, 'interval', interval, above=0)
        self._action = one_of(
            _NAME, 'action', action, (_WARN, _SAVE, _LOWER, _RESTART)
        )
        limit = _check_limit(host_limit)
        self._sampler = TreeSampler(partial(read_tree, limit), interval)
        self._detector = LeakDetector(0)
        self._logged_retries = 0
        self._has_to_lower = False

    def before_train(self, runner: Runner) -> None:
        """Start the thread."""
        from mmstable.hang.watchdog import TrainingThread
        from mmstable.memory.host import batches_of_data
        from mmstable.memory.leaks import LeakDetector

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
        data_batch: DATA_BATCH = None,
        outputs: dict | None = None,
    ) -> None:
        """Judge a new reading."""
        if self._sampler.news:
            self._judge(runner, is_training=True)

    def after_val_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: DATA_BATCH = None,
        outputs: Any = None,
    ) -> None:
        """Judge a new reading; its growth does not count for a trend."""
        if self._sampler.news:
            self._judge(runner, is_training=False)

    def after_val(self, runner: Runner) -> None:
        """Discard a reading taken in validation."""
        self._sampler.news.clear()

    def after_train_epoch(self, runner: Runner) -> None:
        """Halve the workers for the next epoch, if that is due."""
        if self._has_to_lower:
            self._has_to_lower = False
            loading = _halve_loading(runner)
            if loading is not None:
                runner.logger.warning(
                    _(
                        'mmstable: data loading from the next epoch on: '
                        '{loading}.',
                        loading=loading,
                    )
                )

    def close(self, runner: Runner) -> None:
        """Stop the thread."""
        self._sampler.stop()

    def _judge(self, runner: Runner, is_training: bool) -> None:
        reading = self._sampler.news.pop()
        if isinstance(reading, Exception):
            reason = f'{type(reading).__name__}: {reading}'
            runner.logger.warning(
                _(
                    'MemoryGuardHook: host memory cannot be monitored: '
                    '{reason}.',
                    reason=reason,
                )
            )
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
        from mmstable.memory.host import loading_of
        from mmstable.memory.leaks import MAIN, describe_growth

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
        from mmstable.memory.leaks import describe_critical

        iteration = self.monitor.iteration
        action = _SAVE if self._action == _LOWER else self._action
        runs_out = self._detector.runs_out(forecast, iteration)
        if action == _RESTART and not runs_out:
            # A restart frees nothing that does not grow.
            action = _SAVE
        runner.logger.warning(describe_critical(iteration, forecast, action))
        self._emit(runner, forecast, reading, action)
        if action == _WARN:
            return
        saver = runner_view.find_hook(runner, EmergencyCheckpointHook)
        if saver is None:
            runner.logger.warning(
                _(
                    'MemoryGuardHook: no checkpoint is saved, since the run '
                    'has no EmergencyCheckpointHook.'
                )
            )
            return
        request = Request.RESTART if action == _RESTART else SAVE
        saver.request(_('MemoryGuardHook'), request)

    def _lower(self, runner: Runner) -> None:
        loop: Any = runner.train_loop
        if not hasattr(loop, 'restart_workers'):
            self._has_to_lower = True
            return
        loading = _halve_loading(runner)
        if loading is not None:
            loop.restart_workers()
            runner.logger.warning(
                _(
                    'mmstable: dataloader workers were restarted: '
                    '{loading}. Random augmentation differs from here on.',
                    loading=loading,
                )
            )

    def _emit(
        self,
        runner: Runner,
        forecast: Forecast,
        reading: Reading,
        action: str,
    ) -> None:
        from mmstable.memory.host import loading_of

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
        """Log the readings as scalars."""
        from mmstable.memory.host import figures_of, read_device
        from mmstable.messages import readable

        device = read_device(runner_view.device_of(runner.model))
        runner.visualizer.add_scalars(
            figures_of(reading, device), step=self.monitor.iteration
        )
        if device is not None and device.retries > self._logged_retries:
            # Warn again when the count has doubled.
            self._logged_retries = 2 * device.retries
            runner.logger.warning(
                _(
                    'Iter {iteration}: the device ran short of memory and '
                    'the allocator released its cache ({count:time|times}): '
                    '{allocated} in tensors, {reserved} reserved. If these '
                    'differ much, set '
                    'PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.',
                    iteration=self.monitor.iteration,
                    count=device.retries,
                    allocated=readable(device.allocated),
                    reserved=readable(device.reserved),
                )
            )


def _halve_loading(runner: Runner) -> str | None:
    """Halve workers and prefetching; describe the new ones, if changed."""
    from mmstable.memory.host import halve_loading
    from mmstable.memory.leaks import LOADING

    after = halve_loading(runner.train_loop.dataloader)
    return None if after is None else _(LOADING, **after._asdict())


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _check_limit(value: int | str | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, str):
        from mmstable.messages import parse_size

        try:
            return parse_size(value)
        except ValueError as error:
            raise ValueError(f'{_NAME}: `host_limit`: {error}.') from None
    return integer(_NAME, 'host_limit', value)
