"""What can be seen and done from outside of mmengine's own wrappers."""

from __future__ import annotations

import math
from typing import Any

from mmengine.optim import OptimWrapper
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mmstable.events import Culprit, Fault, Outcome, StepReport
from mmstable.numerics import grad_health
from mmstable.numerics.clip_settings import Clip
from mmstable.optim.parameter_names import ParameterNames
from mmstable.optim.step_attempt import StepAttempt, live_gradients
from mmstable.optim.update import Update
from mmstable.optim.window import Window


class StockSteps:
    """Reports, and clipping, for a wrapper that knows neither.

    It is told of a step by torch, right before the optimizer updates. A step
    that mmengine's ``AmpOptimWrapper`` skips never gets there: it is missed
    afterwards, and its gradients, kept since the backward pass, are named.

    Args:
        wrapper (OptimWrapper): A wrapper of mmengine.
        model (Module): The model that it trains.
        clip (Clip, optional): How to clip. Defaults to None.
    """

    def __init__(
        self, wrapper: OptimWrapper, model: Module, clip: Clip | None = None
    ) -> None:
        self._wrapper = wrapper
        self._scaler: Any = getattr(wrapper, 'loss_scaler', None)
        self._names = ParameterNames(wrapper.optimizer)
        self._names.learn(model)
        self._update = Update(wrapper.optimizer, self._names, clip)
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._seen: dict[str, Any] | None = None
        self._scale = self._read_scale()
        self._last_step: StepReport | None = None
        wrapper.optimizer.register_step_pre_hook(self._before_step)
        if self._scaler is not None:
            for group in wrapper.optimizer.param_groups:
                for param in group['params']:
                    param.register_post_accumulate_grad_hook(self._keep)

    @property
    def last_step(self) -> StepReport | None:
        """What became of the newest step; to be asked after an iteration."""
        if self._seen is None and self._is_due():
            self._seen = self._describe_skipped()
        if self._seen is not None:
            before, self._scale = self._scale, self._read_scale()
            self._last_step = StepReport(
                iteration=self._wrapper.inner_count,
                loss_scale=before,
                next_loss_scale=self._scale,
                **self._seen,
            )
            self._seen = None
            self._kept.clear()
        return self._last_step

    def _keep(self, param: Tensor) -> None:
        assert param.grad is not None
        self._kept[id(param)] = (param, param.grad)

    def _before_step(
        self, optimizer: Optimizer, args: tuple, kwargs: dict
    ) -> None:
        params, grads = live_gradients(optimizer)
        if not grads:
            return
        # A fused optimizer is about to unscale by itself.
        scale = getattr(optimizer, 'grad_scale', None)
        attempt = self._measure(
            params, grads, 1.0 if scale is None else float(scale)
        )
        norms = attempt.read_norms()
        if not all(map(math.isfinite, norms)):
            culprits = attempt.find_culprits()
            if culprits:
                skips = bool(getattr(optimizer, 'found_inf', False))
                outcome = Outcome.SKIPPED if skips else Outcome.APPLIED
                self._seen = self._describe_bad(outcome, culprits)
                return
        self._update.clip_gradients(attempt, norms)
        facts = self._update.describe(attempt, norms)
        self._update.observe(attempt, norms)
        self._seen = dict(outcome=Outcome.APPLIED, **facts)

    def _measure(
        self, params: list[Tensor], grads: list[Tensor], scale: float
    ) -> StepAttempt:
        plan = self._update.plan_for(params)
        norms = grad_health.gradient_norms(grads, plan.norm_type)
        return StepAttempt(
            params=params,
            grads=grads,
            norms=norms,
            plan=plan,
            part_norms=plan.part_norms(norms),
            window=Window(),
            loss_scale=scale,
            iteration=self._wrapper.inner_count,
        )

    def _is_due(self) -> bool:
        return bool(self._kept) and self._wrapper.should_update()

    def _describe_skipped(self) -> dict[str, Any] | None:
        params = [param for param, _ in self._kept.values()]
        grads = [grad for _, grad in self._kept.values()]
        culprits = self._measure(params, grads, 1.0).find_culprits()
        if not culprits:
            # Gradients of another optimizer's loss: no step was meant.
            self._kept.clear()
            return None
        return self._describe_bad(Outcome.SKIPPED, culprits)

    def _describe_bad(
        self, outcome: Outcome, culprits: list[tuple[Tensor, str]]
    ) -> dict[str, Any]:
        return dict(
            outcome=outcome,
            fault=Fault.NAN_GRAD if self._scaler is None else Fault.OVERFLOW,
            culprits=tuple(
                Culprit(self._names[param], kind) for param, kind in culprits
            ),
        )

    def _read_scale(self) -> float:
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())
