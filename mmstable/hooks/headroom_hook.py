"""The hook that warns before values leave the range of their type."""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Any

from mmengine.dist import is_main_process
from mmengine.hooks.hook import DATA_BATCH
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.events.records import LowHeadroom
from mmstable.events.samples import read_scale
from mmstable.hooks.step_hook import StepHook
from mmstable.io.schema import list_of, number_or_inf, optional, record, within
from mmstable.messages import _
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import integer, language, number

if TYPE_CHECKING:
    from mmstable.forensics.headroom import (
        HeadroomProbe,
        Place,
        SmallValues,
    )

_NAME = 'HeadroomHook'
_FP16 = 'float16'
# Samples of the underflow that have to agree.
_AGREEING = 3


@register_globally(HOOKS)
class HeadroomHook(StepHook):
    """Warn before an overflow, and of gradients that are lost as zeros.

    In one of many iterations the largest activation and gradient of every
    module is compared with the range of its type (that of autocast for what
    runs under it). If it grows steadily, the hook tells how long that can go
    on. In fp16 it also estimates which share of the gradients is flushed to
    zero at this loss scale. In all other iterations nothing is done.

    Of several ranks the first one looks, at its own batches.

    Args:
        interval (int): Iterations between two samples. Defaults to 200.
        horizon (int): Warn so many iterations before an overflow. Defaults
            to 1000.
        max_share (float): Warn of this share of the range in any case, even
            if it does not grow. Defaults to 0.5.
        max_underflow (float): Warn of this share of gradients that are
            flushed to zero. Defaults to 0.1.
        lang (str, optional): The language of all lines of the run, 'en' or
            'zh_cn'. Defaults to None, which means that of another hook, or
            of the environment variable ``MMSTABLE_LANG``, or English.
    """

    # Ends watching before the monitor (20) tells of the step: others may
    # then run the model again. After RuntimeInfoHook (10) has read the loss.
    priority = 15
    observes_stock = False

    @staticmethod
    def saved(state: Any) -> Any:
        """Check what :meth:`state_dict` gave."""
        from mmstable.forensics.headroom import HeadroomTracks

        return record(
            **HeadroomTracks.checks,
            underflows=list_of(within(0, 1)),
            told_at=optional(number_or_inf),
        )(state)

    def __init__(
        self,
        interval: int = 200,
        horizon: int = 1000,
        max_share: float = 0.5,
        max_underflow: float = 0.1,
        lang: str | None = None,
    ) -> None:
        from mmstable.forensics.headroom import HeadroomTracks

        self.lang = language(_NAME, lang)
        self._interval = integer(_NAME, 'interval', interval)
        self._tracks = HeadroomTracks(
            integer(_NAME, 'horizon', horizon),
            number(_NAME, 'max_share', max_share, above=0, at_most=1),
        )
        self._max_underflow = number(
            _NAME, 'max_underflow', max_underflow, above=0, at_most=1
        )
        self._underflows: deque[float] = deque(maxlen=_AGREEING)
        # The loss scale at which an underflow was told.
        self._told_at: float | None = None
        self._probe: HeadroomProbe | None = None
        self._scale: float | None = None
        self._is_on = False

    def before_train(self, runner: Runner) -> None:
        """Find out whether the model can be looked into."""
        super().before_train(runner)
        self._is_on = is_main_process()
        if self._is_on and runner_view.is_compiled(runner.model):
            self._is_on = False
            runner.logger.info(
                _(
                    'HeadroomHook: the model is compiled, and looking into '
                    'it would compile it again; it is left alone.'
                )
            )

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: DATA_BATCH = None
    ) -> None:
        """Begin to watch, if it is time."""
        # The monitor, which is called later, knows the iteration before.
        if self._is_on and (self.monitor.iteration + 1) % self._interval == 0:
            self._scale = max(
                (
                    scale
                    for one in runner_view.wrappers(runner).values()
                    if (scale := read_scale(one)) is not None
                ),
                default=None,
            )
            from mmstable.forensics.headroom import HeadroomProbe

            self.close(runner)
            self._probe = HeadroomProbe(runner_view.saved_model(runner))
            self.after_train_iter = self._read  # type: ignore[method-assign]

    def _read(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: DATA_BATCH = None,
        outputs: dict | None = None,
    ) -> None:
        """End watching, and report the peaks."""
        del self.after_train_iter
        probe = self._probe
        if probe is not None:
            self.close(runner)
            peaks, small = probe.read()
            self._tell_of_overflow(runner, peaks)
            self._tell_of_underflow(runner, peaks, small)

    def close(self, runner: Runner) -> None:
        """End watching."""
        if self._probe is not None:
            self._probe.remove()
            self._probe = None

    def _tell_of_overflow(
        self, runner: Runner, peaks: dict[Place, float]
    ) -> None:
        from mmstable.forensics.headroom import describe_low, shares_of_range

        iteration = runner.iter + 1
        held = runner_view.wrappers(runner).values()
        floor = max(map(runner_view.smallest_loss_scale, held))
        scale = self._scale or 1.0
        shares = shares_of_range(peaks, scale, min(floor, scale))
        self._tracks.add(iteration, shares)
        short = [
            share
            for place, share in shares.items()
            if place.dtype == _FP16 and math.isfinite(share)
        ]
        if short:
            runner.message_hub.update_scalar(
                'train/stable/range_used', max(short)
            )
        warned = self._tracks.warn(iteration)
        if warned is not None:
            place, known = warned.place, warned.forecast
            self._warn(
                runner,
                describe_low(iteration, warned),
                problem='overflow',
                module=place.module,
                kind=place.kind,
                dtype=place.dtype,
                share=known.share,
                doubling=known.doubling,
                left=None if math.isinf(known.left) else known.left,
                loss_scale=self._scale,
            )

    def _tell_of_underflow(
        self,
        runner: Runner,
        peaks: dict[Place, float],
        small: list[SmallValues],
    ) -> None:
        from mmstable.forensics.headroom import (
            GRADIENT,
            describe_underflow,
            find_underflow,
        )

        largest = [
            peak
            for place, peak in peaks.items()
            if place.kind == GRADIENT and place.dtype == _FP16
        ]
        found = find_underflow(small, largest)
        # After an overflow the gradients tell nothing.
        if found is None or not math.isfinite(max(largest)):
            return
        runner.message_hub.update_scalar('train/stable/underflow', found.share)
        self._underflows.append(found.share)
        if (
            len(self._underflows) == _AGREEING
            and median(self._underflows) >= self._max_underflow
            and self._told_at != self._scale
        ):
            self._told_at = self._scale
            iteration, scale = runner.iter + 1, self._scale or 1.0
            self._warn(
                runner,
                describe_underflow(iteration, found, scale, max(largest)),
                problem='underflow',
                module=found.module,
                kind=GRADIENT,
                dtype=_FP16,
                share=found.share,
                loss_scale=scale,
            )

    def _warn(self, runner: Runner, text: str, **facts: Any) -> None:
        runner.logger.warning(text)
        self.monitor.emit(runner, LowHeadroom.now(runner.iter + 1, **facts))

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        state = {
            **self._tracks.state_dict(),
            'underflows': list(self._underflows),
            'told_at': self._told_at,
        }
        return state if any(state.values()) else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._tracks.load_state_dict(state)
        self._underflows.extend(state['underflows'])
        self._told_at = state['told_at']
