"""The step that all safe wrappers share: measure, judge, apply or skip."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Callable

from mmengine.dist import get_world_size
from torch import Tensor
from torch.optim import Optimizer

from mmstable.distributed.replica_copy import copy_limits, copy_optimizer
from mmstable.distributed.step_consensus import StepConsensus
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
        self.ranks = StepConsensus()
        # Whether several iterations make a step.
        self.accumulates = False
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

    def record_losses(self, outputs: Mapping[str, Any]) -> None:
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
        self.ranks.begin_step()
        self._close(window)
        params, grads = live_gradients(self._optimizer)
        # A rank may hold nothing of a sharded model, but has to vote.
        if window.is_lost or not (grads or self.ranks.is_sharded):
            self._report_nothing(iteration, window)
            return
        attempt = self._measure(params, grads, window, iteration, kwargs)
        if self._must_wait(attempt):
            self._finish(attempt, ran_ahead=False)
        else:
            self._update.run_ahead(attempt)
            self._ahead = attempt

    def _close(self, window: Window) -> None:
        ranks = get_world_size() if self.ranks.is_reduced else 1
        dropped = window.dropped
        if ranks > 1 and self.accumulates and self.ranks.backward_is_local:
            dropped = self.ranks.total_dropped(dropped)
        window.close(dropped, ranks)

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
        if self.ranks.is_sharded:
            self._update.check_shards()
        plan = self._update.plan_for(params, self.ranks.is_sharded)
        norms = grad_health.gradient_norms(grads, plan.norm_type)
        part_norms = plan.part_norms(self.ranks.count_once(params, norms))
        part_norms = self.ranks.total_norms(part_norms, plan.norm_type)
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
            is_whole=not self.ranks.is_sharded,
        )

    def _finish(self, attempt: StepAttempt, ran_ahead: bool) -> None:
        norms = attempt.read_norms()
        is_wide = not all(map(math.isfinite, norms))
        culprits = attempt.find_culprits() if is_wide else []
        bad = is_wide and self.ranks.is_bad(bool(culprits))
        if is_wide and not bad:
            norms = self._wide_norms(attempt)
        bad, unwanted = self._vote(attempt, norms, bad)
        if bad:
            self._skip(attempt, culprits)
        elif unwanted:
            self._reject(attempt, norms)
        else:
            if is_wide:
                self._update.apply_wide(attempt, norms)
            elif not ran_ahead:
                self._update.apply(attempt, norms)
            self._note_applied(attempt, norms)
        self.ranks.end_step()

    def _note_applied(self, attempt: StepAttempt, norms: list[float]) -> None:
        facts = self._update.describe(attempt, norms)
        self._update.observe(attempt, norms)
        self._scaler.note_clean_step()
        self._buffers.keep_step()
        self._report(
            attempt.iteration,
            Outcome.APPLIED,
            attempt.loss_scale,
            attempt.window,
            **self._describe_dropped(attempt),
            **facts,
        )

    def _describe_dropped(self, attempt: StepAttempt) -> dict[str, Any]:
        window = attempt.window
        if not window.all_dropped:
            return {}
        # All ranks know that something was dropped, so all come.
        origins = self.ranks.hear_of_dropped(
            window.dropped > 0, attempt.device
        )
        return dict(fault=Fault.NAN_LOSS, origins=origins)

    def _vote(
        self,
        attempt: StepAttempt,
        norms: list[float],
        bad: bool,
    ) -> list[bool]:
        unwanted = False
        if self.reject is not None and not bad:
            norm = grad_health.combined_norm(norms, attempt.plan.norm_type)
            unwanted = self.reject(attempt.window.mean_loss(), norm)
        # Ranks share their gradients, but not their losses.
        return self.ranks.vote(bad, unwanted, asked=self.reject is not None)

    def _reject(self, attempt: StepAttempt, norms: list[float]) -> None:
        norm = grad_health.combined_norm(norms, attempt.plan.norm_type)
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

    def _wide_norms(self, attempt: StepAttempt) -> list[float]:
        norms = self.ranks.total_norms(
            attempt.wide_part_norms(), attempt.plan.norm_type
        )
        return [norm / attempt.magnification for norm in norms.tolist()]

    def _skip(
        self, attempt: StepAttempt, found: list[tuple[Tensor, str]]
    ) -> None:
        attempt.drop_gradients()
        culprits = tuple(Culprit(self._names[p], kind) for p, kind in found)
        # Only the rank with the bad loss has seen it; all must scale alike.
        hearing = self.ranks.hear(
            attempt.window.all_finite(),
            attempt.device,
            agreed=self.reject is not None,
            culprits=culprits,
        )
        if hearing is None:
            self._fall_behind(attempt)
            return
        fault = grad_health.classify(
            not hearing.loss_is_bad,
            self._scaler.can_shrink and not hearing.behind,
        )
        if fault is not Fault.NAN_LOSS and not hearing.behind:
            self._scaler.note_bad_gradients()
        self._buffers.undo_step()
        self._catch_up(hearing.leader)
        self._report(
            attempt.iteration,
            Outcome.SKIPPED,
            attempt.loss_scale,
            attempt.window,
            fault=fault,
            culprits=hearing.culprits or culprits,
            origins=hearing.origins,
            copied_from=hearing.leader,
        )

    def _fall_behind(self, attempt: StepAttempt) -> None:
        """All others have updated; this rank gets that a step later."""
        self._scaler.note_clean_step()
        self._buffers.keep_step()
        self._report(
            attempt.iteration,
            Outcome.APPLIED,
            attempt.loss_scale,
            attempt.window,
            **self._describe_dropped(attempt),
        )

    def _catch_up(self, leader: int | None) -> None:
        if leader is not None:
            copy_optimizer(self._optimizer, leader)
            copy_limits(self._update.clip, leader)
            self._update.forget()

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
            dropped_micro_batches=window.all_dropped,
            **details,
        )
        self._newest = _with_bad_terms(report, window)
        self._publish(self._newest)


def _with_bad_terms(report: StepReport, window: Window) -> StepReport:
    if report.fault is not Fault.NAN_LOSS:
        return report
    return replace(report, loss_terms=window.bad_terms())
