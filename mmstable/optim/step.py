"""The step that all safe wrappers share: measure, judge, apply or skip.

A rank that missed an update gets weights and optimizer state of another one.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from mmengine.dist import broadcast, broadcast_object_list, get_world_size
from mmengine.logging import print_log
from torch import Tensor
from torch.optim import Optimizer

from mmstable.dist.consensus import StepConsensus
from mmstable.errors import ConfigError
from mmstable.events import Culprit, Fault, Outcome, StepReport
from mmstable.events.monitor import StepQueue
from mmstable.events.records import classify
from mmstable.messages import _
from mmstable.optim import grad_health
from mmstable.optim.buffers import BufferProtection
from mmstable.optim.clipping import Clip, NormClip
from mmstable.optim.grad_health import ParameterNames
from mmstable.optim.loss_scale import LossScaler
from mmstable.optim.pending_step import (
    AccumulationWindow,
    PendingStep,
    live_gradients,
)
from mmstable.optim.spike import StepHold
from mmstable.optim.update import Update


def copy_tensors(tensors: Iterable[Tensor], source: int) -> None:
    """Overwrite tensors by those of a rank. A collective call.

    Args:
        tensors (Iterable[Tensor]): The same list on all ranks.
        source (int): The rank to copy from.
    """
    with torch.no_grad():
        for tensor in tensors:
            whole = tensor.detach().contiguous()
            broadcast(whole, source)
            if whole.data_ptr() != tensor.data_ptr():
                tensor.copy_(whole)


def copy_optimizer(optimizer: Optimizer, source: int) -> None:
    """Overwrite weights and state of an optimizer. A collective call.

    Args:
        optimizer (Optimizer): The optimizer.
        source (int): The rank to copy from.
    """
    params = [p for group in optimizer.param_groups for p in group['params']]
    copy_tensors(params, source)
    layouts = _share([_layout(optimizer, param) for param in params], source)
    for param, layout in zip(params, layouts):
        if not layout:
            # It has never been updated there.
            optimizer.state.pop(param, None)
            continue
        state = optimizer.state[param]
        for key, value in layout.items():
            if isinstance(value, _Shape):
                if not isinstance(state.get(key), Tensor):
                    device = 'cpu' if value.is_cpu else param.device
                    state[key] = torch.zeros(
                        value.size, dtype=value.dtype, device=device
                    )
                copy_tensors([state[key]], source)
            else:
                state[key] = value


def copy_limits(clip: object, source: int) -> None:
    """Overwrite what clipping has learned. A collective call.

    Args:
        clip (Clip, optional): How gradients are clipped.
        source (int): The rank to copy from.
    """
    if not isinstance(clip, NormClip):
        return
    learned = _share([g.limit.state_dict() for g in clip.groups], source)
    for group, state in zip(clip.groups, learned):
        group.limit.load_state_dict(state)


class _Shape(NamedTuple):
    """What a rank needs to allocate a tensor of another rank."""

    size: tuple[int, ...]
    dtype: torch.dtype
    is_cpu: bool


def _layout(optimizer: Optimizer, param: Tensor) -> dict[str, Any]:
    return {
        key: _Shape(tuple(value.shape), value.dtype, value.is_cpu)
        if isinstance(value, Tensor)
        else value
        for key, value in optimizer.state.get(param, {}).items()
    }


def _share(value: list[Any], source: int) -> list[Any]:
    shared: list[Any] = [value]
    broadcast_object_list(shared, source)
    return shared[0]


# More bad losses in a row than this may be about the scale after all.
_MOST_BAD_LOSSES = 3


class SafeStep:
    """Steps of one optimizer that a bad gradient cannot harm.

    On an accelerator a fused optimizer reads its verdict on the device and
    runs ahead of the host; :meth:`resolve` reads that verdict later, when it
    costs nothing.

    Args:
        optimizer (Optimizer): The optimizer.
        clip (Clip, optional): How to clip.
        scaler (LossScaler): The loss scale inside the gradients.
        steps (StepQueue): Takes the report of every step.
        accumulates (bool): Whether several iterations make a step.
        protect_buffers (bool): Whether to restore buffers if a step is
            skipped.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        clip: Clip | None,
        scaler: LossScaler,
        steps: StepQueue,
        accumulates: bool,
        protect_buffers: bool,
    ) -> None:
        self.ranks = StepConsensus()
        self.names = ParameterNames(optimizer)
        self.update = Update(optimizer, self.names, clip)
        self.buffers = BufferProtection(protect_buffers, accumulates)
        # Which steps are held; None for none.
        self.hold: StepHold | None = None
        self._optimizer = optimizer
        self._scaler = scaler
        self._steps = steps
        self._accumulates = accumulates
        self.window = AccumulationWindow()
        # A step that ran ahead: only the device knows its verdict.
        self.pending: PendingStep | None = None
        self._warned_of_empty = self._warned_of_closure = False
        self._newest_iteration: int | None = None
        # Steps in a row that were skipped because of their loss.
        self._bad_losses = 0

    def watch(self, loss: Tensor) -> None:
        """Note a loss that was back-propagated."""
        if self._accumulates:
            self.buffers.keep_iteration()
        self.window.keep(loss)

    def drop(self, had_oom: bool = False) -> None:
        """Drop an iteration from this step.

        Args:
            had_oom (bool): Whether it did not fit in memory. Defaults to
                False.
        """
        self.buffers.undo_iteration()
        self.window.drop(had_oom)
        self._steps.has_bad_loss |= not had_oom

    def invalidate(self) -> None:
        """Have all ranks skip this step, because memory ran out on this one.

        Its gradients are NaN.
        """
        self.watch(torch.tensor(math.nan))
        self.window.had_oom = True

    def step(self, iteration: int, kwargs: dict[str, Any]) -> None:
        """Update the weights, or skip the step if a gradient is bad.

        Args:
            iteration (int): Training iterations done, this one included.
            kwargs (dict): For ``optimizer.step``.
        """
        if self.pending is not None:
            self.resolve()
        window, self.window = self.window, AccumulationWindow()
        self.ranks.steps += 1
        if self._accumulates:
            self._close(window)
        live = live_gradients(self._optimizer)
        # A rank may hold nothing of a sharded model, but has to vote.
        if window.is_lost or not (live[1] or self.ranks.is_sharded):
            self._report_nothing(iteration, window, kwargs)
            return
        ranks = self.ranks
        if ranks.is_sharded:
            self.update.check_shards()
        pending = PendingStep.measure(
            live,
            self.update.plan_for(live[0], ranks.is_sharded),
            window,
            self._scaler.value,
            ranks.shards if ranks.is_sharded else None,
            iteration=iteration,
            loss=window.mean_loss(),
            step_kwargs=kwargs,
            is_first=iteration != self._newest_iteration,
        )
        self._newest_iteration = iteration
        if (
            pending.is_on_host
            or ranks.must_vote
            or not self.update.can_step_async(pending)
        ):
            self._finish(pending, was_async=False)
        else:
            self.update.step_async(pending, *self._limits(pending))
            self.pending = pending

    def hand_through(self, iteration: int, kwargs: dict[str, Any]) -> None:
        """Make a step with a closure, as LBFGS needs it, unchecked.

        The optimizer computes loss and gradients itself, several times.

        Args:
            iteration (int): Training iterations done, this one included.
            kwargs (dict): For ``optimizer.step``.
        """
        if self._scaler.enabled:
            raise ConfigError(
                'optim_wrapper.step: a `closure` cannot be used with a loss '
                'scale, because the optimizer would see scaled gradients. '
                "Train with dtype='bfloat16', or with SafeOptimWrapper."
            )
        if not self._warned_of_closure:
            self._warned_of_closure = True
            print_log(
                _(
                    'mmstable: steps with a `closure` are made as they are: '
                    'gradients are neither checked nor clipped.'
                ),
                logger='current',
                level=logging.WARNING,
            )
        self.resolve()
        self._optimizer.step(**kwargs)
        self.ranks.steps += 1
        window, self.window = self.window, AccumulationWindow()
        self.buffers.keep_step()
        self._report_unmeasured(iteration, window, Outcome.APPLIED, 1.0)

    def _close(self, window: AccumulationWindow) -> None:
        ranks = get_world_size() if self.ranks.is_reduced else 1
        dropped = window.dropped
        if ranks > 1 and self.ranks.backward_is_local:
            dropped = self.ranks.total_dropped(dropped)
        window.close(dropped, ranks)

    def resolve(self) -> None:
        """Read the verdict of a step that ran ahead of the host."""
        if self.pending is not None:
            pending, self.pending = self.pending, None
            self._finish(pending, was_async=True)

    def reset(self) -> None:
        """Drop all that depends on the optimizer's state: it is replaced."""
        self.pending = None
        # The rest of an open window makes a step nevertheless.
        window = self.window
        self.window = (
            window.reset() if self._accumulates else AccumulationWindow()
        )
        self.buffers.keep_step()
        self.update.reset()

    def _finish(self, pending: PendingStep, was_async: bool) -> None:
        norms, loss, found_inf = pending.read()
        # NaN and Inf spread to the sum; a sum that overflows is looked at.
        is_wide = not math.isfinite(sum(norms))
        culprits = pending.find_culprits() if is_wide else []
        bad = is_wide and self.ranks.is_bad(bool(culprits))
        if is_wide and not bad:
            norms = self._wide_norms(pending)
        is_made = was_async and not found_inf
        fault = None
        if not (bad or is_made):
            fault = self._judge(pending, norms, loss)
        if self.ranks.must_vote:
            bad, skips = self.ranks.vote(bad, fault is not None)
            fault = (fault or Fault.SPIKE) if skips else None
        if math.isfinite(loss):
            pending.reported_loss = loss
        elif pending.loss is not None:
            self._steps.has_bad_loss = True
        if bad:
            self._skip(pending, culprits)
        elif fault is not None:
            self._reject(pending, norms, fault)
        else:
            coefs = self.update.coefficients(pending.plan, norms)
            if is_wide or found_inf:
                self.update.apply_late(pending, coefs)
            elif not is_made:
                self.update.apply(pending, coefs)
            self._note_applied(pending, norms, coefs)
        if self.ranks.looks:
            self.ranks.end_step()

    def _note_applied(
        self, pending: PendingStep, norms: list[float], coefs: list[float]
    ) -> None:
        facts = self.update.note_applied(pending, norms, coefs)
        self._bad_losses = 0
        if self._scaler.enabled:
            self._scaler.note_clean_step()
        if self.buffers.is_active:
            self.buffers.keep_step()
        if pending.window.all_dropped:
            facts.update(self._describe_dropped(pending))
        elif pending.has_bad_loss:
            # Of this rank: a mask or a constant keeps it from the gradients.
            facts['fault'] = Fault.NAN_LOSS
        if pending.is_whole:
            self._steps.norms = (
                self.names,
                pending.params,
                pending.norms,
                pending.grad_scale,
                pending.plan.norm_type,
            )
        self._report(pending, Outcome.APPLIED, facts)

    def _describe_dropped(self, pending: PendingStep) -> dict[str, Any]:
        # All ranks know that something was dropped, so all come.
        window = pending.window
        origins = self.ranks.resolve_dropped(
            window.dropped > 0, pending.device, window.had_oom
        )
        had_oom = window.had_oom or any(o.where == 'memory' for o in origins)
        fault = Fault.OOM if had_oom else Fault.NAN_LOSS
        return dict(fault=fault, origins=origins)

    def _limits(self, pending: PendingStep) -> tuple[float, float]:
        """The largest norm and loss that the device lets through."""
        safe_norm, hold = self.update.safe_norm, self.hold
        if hold is None:
            return safe_norm, math.inf
        bound = self.update.bound(pending.plan)
        norm = hold.norm.limit if hold.norm.limit < bound else math.inf
        judges_loss = bound == math.inf and not self.ranks.share_gradients
        loss = hold.loss.limit if judges_loss else math.inf
        return min(norm, safe_norm), loss

    def _judge(
        self, pending: PendingStep, norms: list[float], loss: float
    ) -> Fault | None:
        """What to skip a finite step for; None if it is to be applied."""
        norm = norms[0]
        if len(norms) > 1:
            norm = grad_health.combined_norm(norms, pending.plan.norm_type)
        if norm > self.update.safe_norm and (
            self.ranks.is_bad(self.update.harms_state(pending, norms))
        ):
            return Fault.SPIKE
        hold = self.hold
        if hold is None or not (
            norm > hold.norm.limit or hold.loss.limit < loss < math.inf
        ):
            return None
        bound = self.update.bound(pending.plan)
        if norm > hold.norm.limit:
            # What clipping bounds is not held.
            if bound <= hold.norm.limit or not self.ranks.agree_on_spike():
                return None
        elif bound < math.inf or self.ranks.share_gradients:
            # A loss is each rank's own, gradients mostly are not.
            return None
        return hold.judge(pending, norm, loss)

    def _reject(
        self, pending: PendingStep, norms: list[float], fault: Fault
    ) -> None:
        norm = grad_health.combined_norm(norms, pending.plan.norm_type)
        pending.drop_gradients()
        self._scaler.note_clean_step()
        self.buffers.undo_step()
        facts = dict(fault=fault, grad_norm=norm)
        self._report(pending, Outcome.SKIPPED, facts)

    def _wide_norms(self, pending: PendingStep) -> list[float]:
        norms = self.ranks.total_norms(
            pending.wide_part_norms(), pending.plan.norm_type
        )
        return [norm / pending.grad_scale for norm in norms.tolist()]

    def _skip(
        self, pending: PendingStep, found: list[tuple[Tensor, str]]
    ) -> None:
        pending.drop_gradients()
        culprits = tuple(Culprit(self.names[p], kind) for p, kind in found)
        # Only the rank with the bad loss has seen it; all must scale alike.
        verdict = self.ranks.resolve_bad(
            pending.window.all_finite(),
            pending.device,
            culprits=culprits,
            had_oom=pending.window.had_oom,
        )
        if verdict is None:
            self._fall_behind(pending)
            return
        fault = Fault.OOM
        if not (verdict.had_oom or pending.window.had_oom):
            fault = classify(
                not verdict.loss_is_bad,
                self._scaler.can_shrink and not verdict.behind,
            )
        can_fall = fault is Fault.OVERFLOW and self._scaler.is_moving
        if not verdict.behind:
            self._back_off(fault)
        self.buffers.undo_step()
        if verdict.leader is not None:
            copy_optimizer(self._optimizer, verdict.leader)
            copy_limits(self.update.clip, verdict.leader)
            self.update.reset()
        self._report(
            pending,
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
        # A loss with a constant that is not finite trains well, and hides
        # that the scale is too high.
        if not is_loss or self._bad_losses > _MOST_BAD_LOSSES:
            self._scaler.note_bad_gradients()

    def _fall_behind(self, pending: PendingStep) -> None:
        """Report a step that all other ranks have applied.

        This rank gets that update with its next step.
        """
        self._scaler.note_clean_step()
        self.buffers.keep_step()
        facts: dict[str, Any] = {}
        if pending.window.all_dropped:
            facts = self._describe_dropped(pending)
        self._report(pending, Outcome.APPLIED, facts)

    def _report_nothing(
        self,
        iteration: int,
        window: AccumulationWindow,
        kwargs: dict[str, Any],
    ) -> None:
        scale = self._scaler.value
        outcome, fault = Outcome.EMPTY, None
        if window.is_lost:
            outcome = Outcome.SKIPPED
            fault = Fault.OOM if window.had_oom else Fault.NAN_LOSS
            self._back_off(fault)
            self.buffers.undo_step()
        else:
            self.buffers.keep_step()
            self._warn_of_empty(iteration)
            if not self._scaler.enabled:  # torch's own would refuse
                self._optimizer.step(**kwargs)
        self._report_unmeasured(iteration, window, outcome, scale, fault)

    def _report_unmeasured(
        self,
        iteration: int,
        window: AccumulationWindow,
        outcome: Outcome,
        scale: float,
        fault: Fault | None = None,
    ) -> None:
        facts = dict(iteration=iteration, time=time.time(), loss_scale=scale)
        self._add_report(window, outcome=outcome, fault=fault, **facts)

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
        self, pending: PendingStep, outcome: Outcome, facts: dict[str, Any]
    ) -> None:
        self._add_report(
            pending.window,
            iteration=pending.iteration,
            time=pending.time,
            outcome=outcome,
            loss_scale=pending.loss_scale,
            loss=pending.reported_loss,
            **facts,
        )

    def _add_report(self, window: AccumulationWindow, **facts: Any) -> None:
        report = StepReport(
            wrapper=self._steps.wrapper,
            next_loss_scale=self._scaler.value,
            micro_batches=window.all_iterations,
            dropped_micro_batches=window.all_dropped,
            **facts,
        )
        self._steps.add(report, window.bad_terms)
