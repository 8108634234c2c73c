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
_WARN, _SAVE, _RESTART = 'warn', 'save', 'restart'


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
            'restart': save, and exit with code 22, to be restarted. Defaults
            to 'save'.
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
            _NAME, 'action', action, (_WARN, _SAVE, _RESTART)
        )
        limit = _check_limit(host_limit)
        self._sampler = TreeSampler(partial(read_tree, limit), interval)
        self._detector = LeakDetector(0)
        self._logged_retries = 0

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

    def close(self, runner: Runner) -> None:
        """Stop the thread."""
        self._sampler.stop()

    def _judge(self, runner: Runner, is_training: bool) -> None:
        from mmstable.memory.host import loading_of
        from mmstable.memory.leaks import describe_growth

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
        for forecast in self._detector.add(iteration, reading, is_training):
            if is_training and self._detector.is_new(forecast, iteration):
                loading = loading_of(runner.train_loop.dataloader)
                runner.logger.warning(
                    describe_growth(iteration, forecast, reading, loading)
                )
                self._emit(runner, forecast, reading, _WARN)
            if self._detector.becomes_critical(forecast, iteration):
                self._rescue(runner, forecast, reading)
        if is_training:
            self._publish(runner, reading)

    def _rescue(
        self, runner: Runner, forecast: Forecast, reading: Reading
    ) -> None:
        from mmstable.memory.leaks import describe_critical

        iteration, action = self.monitor.iteration, self._action
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

    def _emit(
        self,
        runner: Runner,
        forecast: Forecast,
        reading: Reading,
        action: str,
    ) -> None:
        from mmstable.memory.host import loading_of

        room = forecast.room
        loading = loading_of(runner.train_loop.dataloader)
        event = MemoryAlarm.now(
            self.monitor.iteration,
            resource=forecast.resource,
            holder=forecast.holder,
            used=room.limit - room.left,
            action=action,
            rank=get_rank(),
            growth=forecast.growth.per_iteration,
            iterations_left=_finite(forecast.iterations_left),
            seconds_left=_finite(forecast.seconds_left),
            workers_share=reading.workers / max(1, reading.tree),
            **room._asdict(),
            **loading._asdict(),
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
        retries = device.get('retries', 0)
        if retries > self._logged_retries:
            # Warn again when the count has doubled.
            self._logged_retries = 2 * retries
            runner.logger.warning(
                _(
                    'Iter {iteration}: the device ran short of memory and '
                    'the allocator released its cache ({count:time|times}): '
                    '{allocated} in tensors, {reserved} reserved. If these '
                    'differ much, set '
                    'PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.',
                    iteration=self.monitor.iteration,
                    count=retries,
                    allocated=readable(device['allocated']),
                    reserved=readable(device['reserved']),
                )
            )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _check_limit(value: int | str | None) -> int | None:
    from mmstable.messages import parse_size

    if value is None:
        return None
    if not isinstance(value, str):
        return integer(_NAME, 'host_limit', value)
    try:
        return parse_size(value)
    except ValueError as error:
        raise ValueError(f'{_NAME}: `host_limit`: {error}.') from None
