"""The step that all safe wrappers share: measure, judge, apply or skip."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from typing import Any

from mmengine.dist import get_world_size
from mmengine.logging import print_log
from torch import Tensor
from torch.optim import Optimizer

from mmstable.distributed.replica_copy import copy_limits, copy_optimizer
from mmstable.distributed.step_consensus import StepConsensus
from mmstable.events import Culprit, Fault, Outcome, StepReport
from mmstable.events.step_queue import StepQueue
from mmstable.events.step_report import classify
from mmstable.messages import _
from mmstable.numerics import grad_health
from mmstable.numerics.loss_scaler import LossScaler
from mmstable.optim.buffer_protection import BufferProtection
from mmstable.optim.parameter_names import ParameterNames
from mmstable.optim.step_attempt import Live, StepAttempt, live_gradients
from mmstable.optim.update import Update
from mmstable.optim.window import Window

# More bad losses in a row than this may be about the scale after all.
_MOST_BAD_LOSSES = 3


class SafeStep:
    """Steps of one optimizer that a bad gradient cannot harm.

    On an accelerator a fused optimizer is told its verdict on the device and
    runs ahead of the host; :meth:`resolve` reads that verdict later, when it
    costs nothing.

    Args:
        optimizer (Optimizer): The optimizer.
        update (Update): How good gradients reach the weights.
        scaler (LossScaler): The loss scale inside the gradients.
        names (ParameterNames): What to call the culprits.
        buffers (BufferProtection): Restores buffers if a step is skipped.
        steps (StepQueue): Takes the report of every step.
        accumulates (bool): Whether several iterations make a step.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        update: Update,
        scaler: LossScaler,
        names: ParameterNames,
        buffers: BufferProtection,
        steps: StepQueue,
        accumulates: bool,
    ) -> None:
        self.ranks = StepConsensus()
        # A step above one of these is a spike.
        self._loss_limit = self._norm_limit = math.inf
        # Whether reports tell the loss.
        self._tells_loss = False
        self._optimizer = optimizer
        self._update = update
        self._scaler = scaler
        self._names = names
        self._buffers = buffers
        self._steps = steps
        self._accumulates = accumulates
        self._window = Window()
        # A step that ran ahead: only the device knows its verdict.
        self.ahead: StepAttempt | None = None
        self._warned_of_empty = False
        # Steps in a row that were skipped because of their loss.
        self._bad_losses = 0

    def limit(self, loss: float, norm: float) -> None:
        """Skip steps from now on whose loss or norm is above these.

        Ranks that share their gradients judge by the norm only: that is the
        same for all of them, so nobody has to ask.
        """
        self._tells_loss = True
        self._loss_limit, self._norm_limit = loss, norm

    def watch(self, loss: Tensor) -> None:
        """Note a loss that is going to be back-propagated."""
        self._buffers.is_used = True
        if self._accumulates:
            self._buffers.keep_iteration()
        self._window.keep(loss)

    def drop(self, ran_out: bool = False) -> None:
        """Leave an iteration out of this step.

        Args:
            ran_out (bool): Whether it did not fit in memory. Defaults to
                False.
        """
        self._buffers.is_used = True
        self._buffers.undo_iteration()
        self._window.drop(ran_out)

    def spoil(self, loss: Tensor) -> None:
        """Have all ranks skip this step, because memory ran out on this one.

        Args:
            loss (Tensor): NaN, as the gradients are.
        """
        self.watch(loss)
        self._window.ran_out = True

    @property
    def has_losses(self) -> bool:
        """Whether the open window has gradients of other iterations."""
        return self._accumulates and self._window.kept > 0

    def record_losses(self, outputs: Any) -> None:
        """Publish the steps of an iteration that is over.

        Args:
            outputs (Mapping, optional): What the model's ``train_step`` gave:
                it tells what the loss was the sum of.
        """
        if self.ahead is not None:
            self.resolve()
        self._steps.publish(outputs)
        if self._window.is_fresh and isinstance(outputs, Mapping):
            # The window stays open in the next iteration.
            self._window.note_terms(outputs)

    def step(self, iteration: int, kwargs: dict[str, Any]) -> None:
        """Update the weights, or skip the step if a gradient is bad.

        Args:
            iteration (int): Training iterations done, this one included.
            kwargs (dict): For ``optimizer.step``.
        """
        if self.ahead is not None:
            self.resolve()
        window, self._window = self._window, Window()
        self.ranks.steps += 1
        if self._accumulates:
            self._close(window)
        live = live_gradients(self._optimizer)
        # A rank may hold nothing of a sharded model, but has to vote.
        if window.is_lost or not (live[1] or self.ranks.is_sharded):
            self._report_nothing(iteration, window, kwargs)
            return
        attempt = self._measure(live, window, iteration, kwargs)
        if (
            attempt.is_on_host
            or self.ranks.must_vote
            or not self._update.can_run_ahead(attempt)
        ):
            self._finish(attempt, ran_ahead=False)
        else:
            safe_norm = self._update.safe_norm(attempt.plan)
            shares = self.ranks.share_gradients
            self._update.run_ahead(
                attempt,
                min(self._norm_limit, safe_norm),
                math.inf if shares else self._loss_limit,
            )
            self.ahead = attempt

    @property
    def is_lost(self) -> bool:
        """Whether all iterations of the open window are left out."""
        return self._window.is_lost

    def end_window(self) -> Window:
        """End the window of a step that somebody else has made."""
        self.ranks.steps += 1
        window, self._window = self._window, Window()
        return window

    def _close(self, window: Window) -> None:
        ranks = get_world_size() if self.ranks.is_reduced else 1
        dropped = window.dropped
        if ranks > 1 and self.ranks.backward_is_local:
            dropped = self.ranks.total_dropped(dropped)
        window.close(dropped, ranks)

    def resolve(self) -> None:
        """Read the verdict of a step that ran ahead of the host."""
        if self.ahead is not None:
            attempt, self.ahead = self.ahead, None
            self._finish(attempt, ran_ahead=True)

    def forget(self) -> None:
        """Drop what is known of the optimizer: its state is replaced."""
        self.ahead = None
        # The rest of an open window makes a step nevertheless.
        window = self._window
        self._window = window.forget() if self._accumulates else Window()
        self._buffers.keep_step()
        self._update.forget()

    def _measure(
        self,
        live: Live,
        window: Window,
        iteration: int,
        kwargs: dict[str, Any],
    ) -> StepAttempt:
        params, grads, as_given = live
        ranks = self.ranks
        if ranks.is_sharded:
            self._update.check_shards()
        plan = self._update.plan_for(params, ranks.is_sharded)
        norms = grad_health.gradient_norms(grads, plan.norm_type)
        counted = norms
        if ranks.is_sharded:
            counted = ranks.shards.count_once(params, norms)
        part_norms = plan.part_norms(counted)
        if ranks.is_sharded:
            part_norms = ranks.shards.total_norms(part_norms, plan.norm_type)
        scale = self._scaler.get_scale()
        return StepAttempt(
            params=params,
            grads=grads,
            norms=norms,
            plan=plan,
            part_norms=part_norms,
            window=window,
            loss_scale=scale,
            magnification=scale * window.shrinkage,
            iteration=iteration,
            loss=window.mean_loss() if self._tells_loss else None,
            step_kwargs=kwargs,
            is_whole=not ranks.is_sharded,
            as_given=as_given,
        )

    def _finish(self, attempt: StepAttempt, ran_ahead: bool) -> None:
        norms, loss, withheld = attempt.read()
        # NaN and Inf spread to the sum; a sum that overflows is looked at.
        is_wide = not math.isfinite(sum(norms))
        culprits = attempt.find_culprits() if is_wide else []
        bad = is_wide and self.ranks.is_bad(bool(culprits))
        if is_wide and not bad:
            norms = self._wide_norms(attempt)
        is_made = ran_ahead and not withheld
        spike = not (bad or is_made) and self._is_spike(attempt, norms, loss)
        if self.ranks.must_vote:
            bad, spike = self.ranks.vote(bad, spike)
        attempt.told_loss = loss if math.isfinite(loss) else None
        if bad:
            self._skip(attempt, culprits)
        elif spike:
            self._reject(attempt, norms)
        else:
            if is_wide or withheld:
                self._update.apply_late(attempt, norms)
            elif not is_made:
                self._update.apply(attempt, norms)
            self._note_applied(attempt, norms)
        if self.ranks.looks:
            self.ranks.end_step()

    def _note_applied(self, attempt: StepAttempt, norms: list[float]) -> None:
        facts = self._update.note_applied(attempt, norms)
        self._bad_losses = 0
        self._scaler.note_clean_step()
        self._buffers.keep_step()
        if attempt.window.all_dropped:
            facts.update(self._describe_dropped(attempt))
        if attempt.is_whole:
            self._steps.norms = (
                self._names,
                attempt.params,
                attempt.norms,
                attempt.magnification,
                attempt.plan.norm_type,
            )
        self._report(attempt, Outcome.APPLIED, facts)

    def _describe_dropped(self, attempt: StepAttempt) -> dict[str, Any]:
        # All ranks know that something was dropped, so all come.
        window = attempt.window
        origins = self.ranks.resolve_dropped(
            window.dropped > 0, attempt.device, window.ran_out
        )
        ran_out = window.ran_out or any(o.where == 'memory' for o in origins)
        fault = Fault.OOM if ran_out else Fault.NAN_LOSS
        return dict(fault=fault, origins=origins)

    def _is_spike(
        self, attempt: StepAttempt, norms: list[float], loss: float
    ) -> bool:
        norm = norms[0]
        if len(norms) > 1:
            norm = grad_health.combined_norm(norms, attempt.plan.norm_type)
        if norm > self._norm_limit:
            return self.ranks.agree_on_spike()
        if self._loss_limit < loss < math.inf:
            # A loss is each rank's own, gradients mostly are not.
            return not self.ranks.share_gradients
        # A spike that needs no history.
        return norm > self._update.safe_norm(attempt.plan) and (
            self.ranks.is_bad(self._update.harms_state(attempt, norms))
        )

    def _reject(self, attempt: StepAttempt, norms: list[float]) -> None:
        norm = grad_health.combined_norm(norms, attempt.plan.norm_type)
        attempt.drop_gradients()
        self._scaler.note_clean_step()
        self._buffers.undo_step()
        facts = dict(fault=Fault.SPIKE, grad_norm=norm)
        self._report(attempt, Outcome.SKIPPED, facts)

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
        verdict = self.ranks.resolve_bad(
            attempt.window.all_finite(),
            attempt.device,
            culprits=culprits,
            ran_out=attempt.window.ran_out,
        )
        if verdict is None:
            self._fall_behind(attempt)
            return
        fault = Fault.OOM
        if not (verdict.ran_out or attempt.window.ran_out):
            fault = classify(
                not verdict.loss_is_bad,
                self._scaler.can_shrink and not verdict.behind,
            )
        can_fall = fault is Fault.OVERFLOW and self._scaler.is_moving
        if not verdict.behind:
            self._back_off(fault)
        self._buffers.undo_step()
        self._catch_up(verdict.leader)
        self._report(
            attempt,
            Outcome.SKIPPED,
            dict(
                fault=fault,
                scale_can_fall=can_fall,
                culprits=verdict.culprits or culprits,
                origins=verdict.origins,
                copied_from=verdict.leader,
            ),
        )

    def _back_off(self, fault: Fault) -> None:
        """Lower the loss scale, unless the loss itself was bad."""
        if fault is Fault.OOM:
            return
        is_loss = fault is Fault.NAN_LOSS
        self._bad_losses = self._bad_losses + 1 if is_loss else 0
        # A loss with a constant that is not finite trains well, and never
        # tells that the scale is too high.
        if not is_loss or self._bad_losses > _MOST_BAD_LOSSES:
            self._scaler.note_bad_gradients()

    def _fall_behind(self, attempt: StepAttempt) -> None:
        """All others have updated; this rank gets that a step later."""
        self._scaler.note_clean_step()
        self._buffers.keep_step()
        facts: dict[str, Any] = {}
        if attempt.window.all_dropped:
            facts = self._describe_dropped(attempt)
        self._report(attempt, Outcome.APPLIED, facts)

    def _catch_up(self, leader: int | None) -> None:
        if leader is not None:
            copy_optimizer(self._optimizer, leader)
            copy_limits(self._update.clip, leader)
            self._update.forget()

    def _report_nothing(
        self, iteration: int, window: Window, kwargs: dict[str, Any]
    ) -> None:
        scale = self._scaler.get_scale()
        outcome, fault = Outcome.EMPTY, None
        if window.is_lost:
            outcome = Outcome.SKIPPED
            fault = Fault.OOM if window.ran_out else Fault.NAN_LOSS
            self._back_off(fault)
            self._buffers.undo_step()
        else:
            self._buffers.keep_step()
            self._warn_of_empty(iteration)
            if not self._scaler.is_enabled():  # torch's own would refuse
                self._optimizer.step(**kwargs)
        report = StepReport(
            iteration=iteration,
            time=time.time(),
            wrapper=self._steps.wrapper,
            outcome=outcome,
            fault=fault,
            loss_scale=scale,
            next_loss_scale=self._scaler.get_scale(),
            micro_batches=window.all_iterations,
            dropped_micro_batches=window.all_dropped,
        )
        self._steps.add(report, window.bad_terms)

    def _warn_of_empty(self, iteration: int) -> None:
        if not self._warned_of_empty:
            self._warned_of_empty = True
            print_log(
                _(
                    'mmstable: Iter {iteration}: no parameter has a '
                    'gradient, so there is nothing to update. Is every '
                    'parameter frozen, or is the loss detached?',
                    iteration=iteration,
                ),
                logger='current',
                level=logging.WARNING,
            )

    def _report(
        self, attempt: StepAttempt, outcome: Outcome, facts: dict[str, Any]
    ) -> None:
        window = attempt.window
        report = StepReport(
            iteration=attempt.iteration,
            time=attempt.time,
            wrapper=self._steps.wrapper,
            outcome=outcome,
            loss_scale=attempt.loss_scale,
            next_loss_scale=self._scaler.get_scale(),
            loss=attempt.told_loss,
            micro_batches=window.all_iterations,
            dropped_micro_batches=window.all_dropped,
            **facts,
        )
        self._steps.add(report, window.bad_terms)
