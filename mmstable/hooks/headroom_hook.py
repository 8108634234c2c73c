"""The hook that warns before values leave the range of their type."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mmengine.dist import is_main_process
from mmengine.hooks.hook import DATA_BATCH
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.events.records import LowHeadroom
from mmstable.events.samples import read_scale
from mmstable.hooks.step_hook import StepHook
from mmstable.messages import _
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import integer, language, number

if TYPE_CHECKING:
    from mmstable.forensics.headroom import HeadroomProbe

_NAME = 'HeadroomHook'


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
        from mmstable.forensics.headroom import Headroom

        return Headroom.check(state)

    def __init__(
        self,
        interval: int = 200,
        horizon: int = 1000,
        max_share: float = 0.5,
        lang: str | None = None,
    ) -> None:
        from mmstable.forensics.headroom import Headroom

        self.lang = language(_NAME, lang)
        self._interval = integer(_NAME, 'interval', interval)
        self._headroom = Headroom(
            integer(_NAME, 'horizon', horizon),
            number(_NAME, 'max_share', max_share, above=0, at_most=1),
        )
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
            from mmstable.forensics.headroom import HeadroomProbe

            scales = map(read_scale, runner_view.wrappers(runner).values())
            known = [scale for scale in scales if scale is not None]
            self._scale = max(known, default=None)
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
        """End watching, and report what comes close to an end of a range."""
        from mmstable.forensics.headroom import FP16, GRADIENT, find_underflow

        del self.after_train_iter
        probe, iteration = self._probe, runner.iter + 1
        if probe is None:
            return
        self.close(runner)
        peaks, small = probe.read()
        held = runner_view.wrappers(runner).values()
        floor = max(map(runner_view.smallest_loss_scale, held))
        scale = self._scale or 1.0
        shares = {
            place: place.share(peak, scale, min(floor, scale))
            for place, peak in peaks.items()
        }
        warnings = [self._headroom.warn(iteration, shares)]
        fp16 = {k: peak for k, peak in peaks.items() if k.dtype == FP16}
        finite = [shares[k] for k in fp16 if math.isfinite(shares[k])]
        if finite:
            runner.message_hub.update_scalar(
                'train/stable/range_used', max(finite)
            )
        gradients = [p for k, p in fp16.items() if k.kind == GRADIENT]
        lost = find_underflow(small, gradients)
        # After an overflow the gradients tell nothing.
        if lost is not None and math.isfinite(max(gradients)):
            runner.message_hub.update_scalar(
                'train/stable/underflow', lost.share
            )
            warnings.append(
                self._headroom.warn_of_underflow(
                    iteration, lost, scale, max(gradients)
                )
            )
        for text, facts in filter(None, warnings):
            runner.logger.warning(text)
            event = LowHeadroom.now(iteration, **facts, loss_scale=self._scale)
            self.monitor.emit(runner, event)

    def close(self, runner: Runner) -> None:
        """End watching."""
        if self._probe is not None:
            self._probe.remove()
            self._probe = None

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return self._headroom.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._headroom.load_state_dict(state)
