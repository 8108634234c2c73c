"""The step that all safe wrappers share: measure, judge, apply or skip."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Callable

from torch import Tensor
from torch.optim import Optimizer

from mmstable import dist
from mmstable.events import Culprit, Fault, Outcome, StepReport
from mmstable.numerics import grad_health
from mmstable.numerics.loss_scaler import LossScaler
from mmstable.optim.buffer_protection import BufferProtection
from mmstable.optim.parameter_names import ParameterNames
from mmstable.optim.step_attempt import StepAttempt, live_gradients
from mmstable.optim.update import Update
from mmstable.optim.window import Window


class SafeStep:
    """Steps of one optimizer that a bad gradient cannot harm.

    On an accelerator a fused optimizer is told its verdict on the device and
    runs ahead of the host; :meth:`settle` reads that verdict later, when it
    costs nothing.

    Args:
        optimizer (Optimizer): The optimizer.
        update (Update): How good gradients reach the weights.
        scaler (LossScaler): The loss scale inside the gradients.
        names (ParameterNames): What to call the culprits.
        buffers (BufferProtection): Puts buffers back if a step is left out.
        publish (Callable): Called once with the report of every step.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        update: Update,
        scaler: LossScaler,
        names: ParameterNames,
        buffers: BufferProtection,
        publish: Callable[[StepReport], None],
    ) -> None:
        # Whether every rank holds its own part of the gradients.
        self.sharded = False
        # Asked with the loss and the norm of a good step: leave it out?
        self.reject: Callable[[float, float], bool] | None = None
        self._optimizer = optimizer
        self._update = update
        self._scaler = scaler
        self._names = names
        self._buffers = buffers
        self._publish = publish
        self._window = Window()
        self._ahead: StepAttempt | None = None
        # Those of the newest step, and what became of it once it is settled.
        self._judged = Window()
        self._newest: StepReport | None = None

    @property
    def newest(self) -> StepReport | None:
        """What became of the newest step; None before the first one."""
        self.settle()
        return self._newest

    def watch(self, loss: Tensor) -> None:
        """Hear of a loss that is going to be back-propagated."""
        self._buffers.keep_iteration()
        self._window.keep(loss)

    def drop(self) -> None:
        """Hear of an iteration that is left out of this step."""
        self._buffers.undo_iteration()
        self._window.drop()

    def name_losses(self, outputs: Mapping[str, Any]) -> None:
        """Hear, after an iteration, what its loss was the sum of."""
        window = self._judged if self._window.is_empty else self._window
        if window.is_named:
            return
        window.note_terms(outputs)
        is_settled = window is self._judged and self._ahead is None
        if is_settled and self._newest is not None:
            self._newest = _with_bad_terms(self._newest, window)

    def step(self, iteration: int, **kwargs: Any) -> None:
        """Update the weights, or leave them alone if a gradient is bad.

        Args:
            iteration (int): Training iterations done, this one included.
            **kwargs: For ``optimizer.step``.
        """
        self.settle()
        window, self._window = self._window, Window()
        self._judged = window
        params, grads = live_gradients(self._optimizer)
        if window.is_lost or not grads:
            self._report_nothing(iteration, window)
            return
        attempt = self._measure(params, grads, window, iteration, kwargs)
        if self._must_wait(attempt):
            self._finish(attempt, ran_ahead=False)
        else:
            self._update.run_ahead(attempt)
            self._ahead = attempt

    def _must_wait(self, attempt: StepAttempt) -> bool:
        return (
            attempt.is_on_host
            or self.reject is not None
            or not self._update.can_run_ahead(attempt)
        )

    def settle(self) -> None:
        """Read the verdict of a step that ran ahead of the host."""
        if self._ahead is not None:
            attempt, self._ahead = self._ahead, None
            self._finish(attempt, ran_ahead=True)

    def forget(self) -> None:
        """Drop what is known of the optimizer: its state is replaced."""
        self._ahead = None
        self._window = Window()
        self._buffers.keep_step()
        self._update.forget()

    def _measure(
        self,
        params: list[Tensor],
        grads: list[Tensor],
        window: Window,
        iteration: int,
        kwargs: dict[str, Any],
    ) -> StepAttempt:
        plan = self._update.plan_for(params)
        norms = grad_health.gradient_norms(grads, plan.norm_type)
        part_norms = plan.part_norms(norms)
        if self.sharded:
            part_norms = dist.norm_over_ranks(part_norms, plan.norm_type)
        return StepAttempt(
            params=params,
            grads=grads,
            norms=norms,
            plan=plan,
            part_norms=part_norms,
            window=window,
            loss_scale=self._scaler.get_scale(),
            iteration=iteration,
            step_kwargs=kwargs,
        )

    def _finish(self, attempt: StepAttempt, ran_ahead: bool) -> None:
        norms = attempt.read_norms()
        if not all(map(math.isfinite, norms)):
            culprits = attempt.find_culprits()
            if self._anywhere(bool(culprits)):
                self._skip(attempt, culprits)
                return
            norms = self._wide_norms(attempt)
            if self._is_rejected(attempt, norms):
                return
            self._update.apply_wide(attempt, norms)
        elif self._is_rejected(attempt, norms):
            return
        elif not ran_ahead:
            self._update.apply(attempt, norms)
        facts = self._update.describe(attempt, norms)
        self._update.observe(attempt, norms)
        self._scaler.note_clean_step()
        self._buffers.keep_step()
        self._report(
            attempt.iteration,
            Outcome.APPLIED,
            attempt.loss_scale,
            attempt.window,
            fault=Fault.NAN_LOSS if attempt.window.dropped else None,
            **facts,
        )

    def _is_rejected(self, attempt: StepAttempt, norms: list[float]) -> bool:
        if self.reject is None:
            return False
        norm = grad_health.combined_norm(norms, attempt.plan.norm_type)
        # Ranks share their gradients, but not their losses.
        if not dist.any_rank(self.reject(attempt.window.mean_loss(), norm)):
            return False
        attempt.drop_gradients()
        self._scaler.note_clean_step()
        self._buffers.undo_step()
        self._report(
            attempt.iteration,
            Outcome.SKIPPED,
            attempt.loss_scale,
            attempt.window,
            fault=Fault.SPIKE,
            grad_norm=norm,
        )
        return True

    def _anywhere(self, flag: bool) -> bool:
        return dist.any_rank(flag) if self.sharded else flag

    def _wide_norms(self, attempt: StepAttempt) -> list[float]:
        norms = attempt.wide_part_norms()
        if self.sharded:
            norms = dist.norm_over_ranks(norms, attempt.plan.norm_type)
        return [norm / attempt.magnification for norm in norms.tolist()]

    def _skip(
        self, attempt: StepAttempt, culprits: list[tuple[Tensor, str]]
    ) -> None:
        attempt.drop_gradients()
        # Only the rank with the bad loss has seen it; all must scale alike.
        loss_is_bad = dist.any_rank(not attempt.window.all_finite())
        fault = grad_health.classify(not loss_is_bad, self._scaler.can_shrink)
        if fault is not Fault.NAN_LOSS:
            self._scaler.note_bad_gradients()
        self._buffers.undo_step()
        self._report(
            attempt.iteration,
            Outcome.SKIPPED,
            attempt.loss_scale,
            attempt.window,
            fault=fault,
            culprits=tuple(
                Culprit(self._names[param], kind) for param, kind in culprits
            ),
        )

    def _report_nothing(self, iteration: int, window: Window) -> None:
        scale = self._scaler.get_scale()
        if window.is_lost:
            self._buffers.undo_step()
            self._report(
                iteration,
                Outcome.SKIPPED,
                scale,
                window,
                fault=Fault.NAN_LOSS,
            )
        else:
            self._buffers.keep_step()
            self._report(iteration, Outcome.EMPTY, scale, window)

    def _report(
        self,
        iteration: int,
        outcome: Outcome,
        loss_scale: float,
        window: Window,
        **details: Any,
    ) -> None:
        report = StepReport(
            iteration=iteration,
            outcome=outcome,
            loss_scale=loss_scale,
            next_loss_scale=self._scaler.get_scale(),
            dropped_micro_batches=window.dropped,
            **details,
        )
        self._newest = _with_bad_terms(report, window)
        self._publish(self._newest)


def _with_bad_terms(report: StepReport, window: Window) -> StepReport:
    if report.fault is not Fault.NAN_LOSS:
        return report
    return replace(report, loss_terms=window.bad_terms())
