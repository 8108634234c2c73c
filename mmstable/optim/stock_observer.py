"""What can be seen and done from outside of mmengine's own wrappers."""

from __future__ import annotations

import math
from functools import partial, wraps
from typing import Any, Callable

from mmengine.optim import OptimWrapper
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mmstable import run_view
from mmstable.events import Culprit, Fault, Outcome, StepReport
from mmstable.events.step_queue import StepQueue
from mmstable.numerics import grad_health
from mmstable.numerics.clip_settings import Clip
from mmstable.optim.before_step import before_step
from mmstable.optim.parameter_names import ParameterNames
from mmstable.optim.step_attempt import Live, StepAttempt, live_gradients
from mmstable.optim.update import Update
from mmstable.optim.window import Window


class StockObserver:
    """Reports the steps of a wrapper of mmengine, and clips for it.

    While somebody is subscribed, it stands in for the wrapper's ``backward``
    and ``step``: losses are noted, and gradients are measured once, before
    the wrapper unscales and clips them; a call before its update tells
    whether the optimizer was reached, which it is not if mmengine's
    ``AmpOptimWrapper`` skips the step.

    Args:
        wrapper (OptimWrapper): A wrapper of mmengine.
        model (Module): The model that it trains.
    """

    is_stock = True

    def __init__(self, wrapper: OptimWrapper, model: Module) -> None:
        self.steps = StepQueue(is_observed=True)
        self._wrapper: Any = wrapper
        self._scaler = run_view.loss_scaler(wrapper)
        self._names = ParameterNames(wrapper.optimizer)
        self._names.learn(model)
        self._update = Update(wrapper.optimizer, self._names, None)
        self._remove: list[Callable[[], Any]] = []
        self._window = Window()
        # The gradients of the step that is being made, if they are good.
        self._attempt: tuple[StepAttempt, list[float]] | None = None
        self._is_updated = False

    @property
    def clip(self) -> Clip | None:
        """How gradients are clipped, besides what the wrapper does."""
        return self._update.clip

    @clip.setter
    def clip(self, clip: Clip) -> None:
        self._update.clip = clip

    def subscribe(
        self, name: str, publish: Callable[[StepReport], None]
    ) -> None:
        """Observe the wrapper, and publish its steps."""
        self.steps.subscribe(name, publish)
        wrapper = self._wrapper
        self._remove = [before_step(wrapper.optimizer, self._before_update)]
        self._original_step = self._replace('step', self._step)
        self._original_backward = self._replace('backward', self._backward)

    def _replace(self, name: str, method: Callable) -> Callable:
        """Stand in for a method of the wrapper; the original."""
        wrapper, original = self._wrapper, getattr(self._wrapper, name)
        if name in vars(wrapper):
            self._remove.append(lambda: setattr(wrapper, name, original))
        else:
            self._remove.append(lambda: delattr(wrapper, name))
        if hasattr(original, '_with_counter'):
            # Schedulers warn of a step without their mark.
            method = wraps(original)(partial(method))
        setattr(wrapper, name, method)
        return original

    def unsubscribe(self) -> None:
        """Leave the wrapper as it was."""
        while self._remove:
            self._remove.pop()()
        self.steps.unsubscribe()

    def record_losses(self, outputs: Any) -> None:
        """Publish the steps of an iteration that is over."""
        self.steps.publish(outputs)

    def _backward(self, loss: Tensor, **kwargs: Any) -> None:
        self._window.keep(loss)
        self._original_backward(loss, **kwargs)

    def _step(self, **kwargs: Any) -> None:
        window, self._window = self._window, Window()
        live = live_gradients(self._wrapper.optimizer)
        if not live[1]:
            self._original_step(**kwargs)
            return
        scale = self._read_scale()
        attempt = self._measure(live, window, scale)
        norms, loss, _ = attempt.read()
        culprits: list[tuple[Tensor, str]] = []
        if not all(map(math.isfinite, norms)):
            culprits = attempt.find_culprits()
            norms = [one / scale for one in attempt.wide_part_norms().tolist()]
        self._attempt = None if culprits else (attempt, norms)
        self._is_updated = False
        self._original_step(**kwargs)
        self._attempt = None
        if culprits:
            facts = self._describe_bad(culprits)
        elif self._is_updated:
            facts = self._update.note_applied(attempt, norms)
            self.steps.norms = (
                self._names,
                attempt.params,
                attempt.norms,
                scale,
                attempt.plan.norm_type,
            )
        else:
            # Nobody knows why.
            return
        outcome = Outcome.APPLIED if self._is_updated else Outcome.SKIPPED
        next_scale = self._read_scale()
        iteration = self.steps.iteration
        self.steps.add(
            StepReport(
                iteration=0 if iteration is None else iteration,
                time=attempt.time,
                wrapper=self.steps.wrapper,
                outcome=outcome,
                loss_scale=scale,
                next_loss_scale=next_scale,
                loss=loss if math.isfinite(loss) else None,
                # It has no floor; below 1 it has never helped anybody.
                scale_can_fall=bool(culprits) and 1.0 <= next_scale < scale,
                **facts,
            ),
            Window().bad_terms,
        )

    def _before_update(
        self, optimizer: Optimizer, args: tuple, kwargs: dict
    ) -> None:
        # A fused optimizer unscales by itself, and skips by itself.
        scale = getattr(optimizer, 'grad_scale', None)
        self._is_updated = not getattr(optimizer, 'found_inf', None)
        if self._attempt is not None and self.clip is not None:
            attempt, norms = self._attempt
            attempt.magnification = 1.0 if scale is None else float(scale)
            self._update.clip_gradients(attempt, norms)

    def _measure(
        self, live: Live, window: Window, scale: float
    ) -> StepAttempt:
        params, grads, as_given = live
        plan = self._update.plan_for(params)
        norms = grad_health.gradient_norms(grads, plan.norm_type)
        return StepAttempt(
            params=params,
            grads=grads,
            norms=norms,
            plan=plan,
            part_norms=plan.part_norms(norms),
            window=window,
            loss_scale=scale,
            magnification=scale,
            iteration=0,
            loss=window.mean_loss(),
            as_given=as_given,
        )

    def _describe_bad(
        self, culprits: list[tuple[Tensor, str]]
    ) -> dict[str, Any]:
        return dict(
            fault=Fault.NAN_GRAD if self._scaler is None else Fault.OVERFLOW,
            culprits=tuple(
                Culprit(self._names[param], kind) for param, kind in culprits
            ),
        )

    def _read_scale(self) -> float:
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())
