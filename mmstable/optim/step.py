"""The step that all safe wrappers share: measure, judge, apply or skip.

A rank that missed an update gets weights and optimizer state of another one.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from mmengine.dist import broadcast, broadcast_object_list, get_world_size
from mmengine.logging import MessageHub, print_log
from torch import Tensor
from torch.optim import Optimizer

from mmstable.dist.consensus import StepConsensus
from mmstable.errors import ConfigError
from mmstable.events import Culprit, Fault, Outcome, StepReport
from mmstable.events.monitor import StepQueue, StepScalars
from mmstable.messages import _
from mmstable.optim import grad_health
from mmstable.optim.buffers import BufferProtection
from mmstable.optim.clipping import Clip, NormClip
from mmstable.optim.grad_health import ParameterNames
from mmstable.optim.loss_scale import LossScaler
from mmstable.optim.pending_step import (
    PendingStep,
    StepHold,
    live_gradients,
)
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


def copy_optimizer(
    optimizer: Optimizer, clip: Clip | None, source: int
) -> None:
    """Overwrite weights, state and limits. A collective call.

    Args:
        optimizer (Optimizer): The optimizer.
        clip (Clip, optional): How its gradients are clipped.
        source (int): The rank to copy from.
    """
    for group in optimizer.param_groups:
        copy_tensors(group['params'], source)
        for param in group['params']:
            state = optimizer.state.pop(param, {})
            tensors = {k: v for k, v in state.items() if torch.is_tensor(v)}
            # What a rank needs to allocate those of another rank.
            shapes = {
                key: (value.shape, value.dtype, value.is_cpu)
                for key, value in tensors.items()
            }
            rest = {k: v for k, v in state.items() if k not in tensors}
            shared: list[Any] = [shapes, rest]
            broadcast_object_list(shared, source)
            shapes, rest = shared
            for key, (shape, dtype, is_cpu) in shapes.items():
                if key not in tensors:
                    device = 'cpu' if is_cpu else param.device
                    tensors[key] = torch.zeros(shape, dtype=dtype).to(device)
            copy_tensors([tensors[key] for key in shapes], source)
            if shapes or rest:
                # Else it has never been updated there.
                kept = {key: tensors[key] for key in shapes}
                optimizer.state[param] = {**kept, **rest}
    if isinstance(clip, NormClip):
        learned: list[Any] = [g.limit.state_dict() for g in clip.groups]
        broadcast_object_list(learned, source)
        for one, limit in zip(clip.groups, learned):
            one.limit.load_state_dict(limit)


# More bad losses in a row than this may be about the scale after all.
_MOST_BAD_LOSSES = 3


class SafeStep:
    """Steps of one optimizer that a bad gradient cannot harm.

    It is the part of the wrappers that takes the place of mmengine's step.
    On an accelerator a fused optimizer reads its verdict on the device and
    runs ahead of the host; :meth:`resolve` reads that verdict later, when it
    costs nothing.

    Args:
        optimizer (Optimizer): The optimizer.
        clip (Clip, optional): How to clip.
        accumulates (bool): Whether several iterations make a step.
        protect_buffers (bool): Whether to restore buffers if a step is
            skipped.
    """

    loss_scaler: LossScaler
    message_hub: MessageHub
    _inner_count: int

    def __init__(
        self,
        optimizer: Optimizer,
        clip: Clip | None,
        accumulates: bool,
        protect_buffers: bool,
    ) -> None:
        self.optimizer = optimizer
        self.steps = StepQueue(self._publish_alone)
        self._scalars: StepScalars | None = None
        # The open window, and a step that ran ahead: only the device knows
        # its verdict.
        self._window = PendingStep()
        self._pending: PendingStep | None = None
        # Which steps are held; None for none.
        self._hold: StepHold | None = None
        self._ranks = StepConsensus()
        self._names = ParameterNames(optimizer)
        self._update = Update(optimizer, self._names, clip)
        self._buffers = BufferProtection(protect_buffers, accumulates)
        self._accumulates = accumulates
        self._newest_iteration: int | None = None
        # Steps in a row that were skipped because of their loss.
        self._bad_losses = 0
        self._warned: set[str] = set()

    @property
    def last_step(self) -> StepReport | None:
        """The report of the newest step; None before the first one."""
        self.resolve()
        return self.steps.newest

    @property
    def applied_steps(self) -> int:
        """Steps that updated the weights, over the whole run."""
        self.resolve()
        return self.steps.tally.applied

    @property
    def skipped_steps(self) -> int:
        """Steps skipped because of a fault, over the whole run."""
        self.resolve()
        return self.steps.tally.skipped

    @property
    def is_behind(self) -> bool:
        """Whether all ranks but this one have made the newest update.

        It gets that update in the next step.
        """
        self.resolve()
        return self._ranks.is_behind

    @property
    def clip(self) -> Clip | None:
        """How gradients are clipped; None if they are not."""
        return self._update.clip

    @clip.setter
    def clip(self, clip: Clip) -> None:
        self._update.clip = clip

    def attach(self) -> None:
        """Do nothing: its steps are reported in any case."""

    def detach(self) -> None:
        """Do nothing, either."""

    def hold_steps(self, hold: StepHold | None) -> None:
        """Hold steps that look wrong until something has judged them.

        On an accelerator the device compares, and the host does not wait.

        Args:
            hold (StepHold, optional): Which steps; None for none.
        """
        self._hold = hold

    def record_losses(self, outputs: Any) -> None:
        """End an iteration: all of its steps are reported.

        The wrapper itself sees nothing but the sum of all losses. Called by
        :class:`~mmstable.events.monitor.RunMonitor` once an iteration.

        Args:
            outputs (Mapping, optional): What the model's ``train_step`` gave.
        """
        if self._pending is not None:
            self.resolve()
        if self._window.is_fresh and isinstance(outputs, Mapping):
            # The window stays open in the next iteration.
            self._window.note_terms(outputs)

    def reset(self) -> None:
        """Drop all that depends on the optimizer's state: it is replaced."""
        self._pending = None
        window, self._window = self._window, PendingStep()
        if self._accumulates:
            # The rest of an open window makes a step nevertheless.
            gone = window.kept + window.dropped + window.forgotten
            self._window.forgotten = gone
        self._buffers.keep_step()
        self._update.reset()

    def undo_failed_iteration(self) -> bool:
        """Undo what forward passes did, if their iteration has failed.

        Returns:
            bool: Whether all buffers are what they were before it.
        """
        return self._buffers.undo_failed(self.steps.iteration)

    def rewind_buffers(self) -> set[tuple[int, str]]:
        """Give the buffers of now the values from before the open step.

        Returns:
            set: The tables, by id, and the names in them that were written.
        """
        return self._buffers.rewind()

    def _watch(self, loss: Tensor) -> None:
        """Note a loss that was back-propagated."""
        if self._accumulates:
            self._buffers.keep_iteration()
        self._window.keep(loss)

    def _drop(self, had_oom: bool = False) -> None:
        """Drop an iteration from the open window."""
        self._buffers.undo_iteration()
        self._window.drop(had_oom)
        self.steps.has_bad_loss |= not had_oom

    def step(self, **kwargs: Any) -> None:
        """Update the weights, or skip the step if a gradient is bad.

        Args:
            **kwargs: For ``optimizer.step``. A step with a ``closure`` is
                handed through: it is not checked.
        """
        if self._pending is not None:
            self.resolve()
        step, self._window = self._window, PendingStep()
        iteration, ranks = self.steps.iteration, self._ranks
        step.iteration = self._inner_count if iteration is None else iteration
        step.time, step.kwargs = time.time(), kwargs
        step.loss_scale = self.loss_scaler.value
        ranks.steps += 1
        if kwargs and kwargs.get('closure') is not None:
            self._hand_through(step)
            return
        if self._accumulates:
            dropped, size = step.dropped, 1
            if ranks.is_reduced:
                size = get_world_size()
            if size > 1 and ranks.backward_is_local:
                dropped = ranks.total_dropped(dropped)
            step.close(dropped, size)
        live = live_gradients(self.optimizer)
        # A rank may hold nothing of a sharded model, but has to vote.
        if step.is_lost or not (live[1] or ranks.is_sharded):
            self._report_nothing(step)
            return
        plan = self._update.plan_for(live[0], ranks.is_sharded)
        step.measure(live, plan, ranks.shards if ranks.is_sharded else None)
        step.is_first = step.iteration != self._newest_iteration
        self._newest_iteration = step.iteration
        if (
            step.is_on_host
            or ranks.must_vote
            or not self._update.can_step_async(step)
        ):
            self._finish(step, was_async=False)
        else:
            self._update.step_async(step, *self._limits(step))
            self._pending = step

    def resolve(self) -> None:
        """Wait for the verdict on the newest step."""
        if self._pending is not None:
            step, self._pending = self._pending, None
            self._finish(step, was_async=True)

    def _hand_through(self, step: PendingStep) -> None:
        """Make a step with a closure, as LBFGS needs it, unchecked.

        The optimizer computes loss and gradients itself, several times.
        """
        if self.loss_scaler.enabled:
            raise ConfigError(
                'optim_wrapper.step: a `closure` cannot be used with a loss '
                'scale, because the optimizer would see scaled gradients. '
                "Train with dtype='bfloat16', or with SafeOptimWrapper."
            )
        self._warn_once(
            'closure',
            _(
                'mmstable: steps with a `closure` are made as they are: '
                'gradients are neither checked nor clipped.'
            ),
        )
        self.optimizer.step(**step.kwargs)
        self._buffers.keep_step()
        self._report(step, Outcome.APPLIED)

    def _finish(self, step: PendingStep, was_async: bool) -> None:
        ranks, update = self._ranks, self._update
        norms, loss, found_inf = step.read()
        # NaN and Inf spread to the sum; a sum that overflows is looked at.
        is_wide = not math.isfinite(sum(norms))
        culprits = step.find_culprits() if is_wide else []
        bad = is_wide and ranks.is_bad(bool(culprits))
        if is_wide and not bad:
            total = ranks.total_norms(
                step.wide_part_norms(), step.plan.norm_type
            )
            norms = [norm / step.grad_scale for norm in total.tolist()]
        is_made = was_async and not found_inf
        fault = None
        if not (bad or is_made):
            fault = self._judge(step, norms, loss)
        if ranks.must_vote:
            bad, skips = ranks.vote(bad, fault is not None)
            fault = (fault or Fault.SPIKE) if skips else None
        if step.loss is not None and step.reported_loss is None:
            self.steps.has_bad_loss = True
        if bad:
            self._skip(step, culprits)
        elif fault is not None:
            norm = grad_health.combined_norm(norms, step.plan.norm_type)
            step.drop_gradients()
            self.loss_scaler.note_clean_step()
            self._buffers.undo_step()
            self._report(step, Outcome.SKIPPED, fault=fault, grad_norm=norm)
        else:
            coefs = update.coefficients(step.plan, norms)
            if is_wide or found_inf:
                update.apply_late(step, coefs)
            elif not is_made:
                update.apply(step, coefs)
            self._note_applied(step, norms, coefs)
        if ranks.looks:
            ranks.end_step()

    def _note_applied(
        self, step: PendingStep, norms: list[float], coefs: list[float]
    ) -> None:
        facts = self._update.note_applied(step, norms, coefs)
        self._bad_losses = 0
        if self.loss_scaler.enabled:
            self.loss_scaler.note_clean_step()
        self._buffers.keep_step()
        if step.all_dropped:
            facts.update(self._describe_dropped(step))
        elif step.loss is not None and step.reported_loss is None:
            # Of this rank: a mask or a constant keeps it from the gradients.
            facts['fault'] = Fault.NAN_LOSS
        if step.is_whole:
            self.steps.norms = (
                self._names,
                step.params,
                step.norms,
                step.grad_scale,
                step.plan.norm_type,
            )
        self._report(step, Outcome.APPLIED, **facts)

    def _describe_dropped(self, step: PendingStep) -> dict[str, Any]:
        # All ranks know that something was dropped, so all come.
        origins = self._ranks.resolve_dropped(
            step.dropped > 0, step.part_norms.device, step.had_oom
        )
        had_oom = step.had_oom or any(o.where == 'memory' for o in origins)
        fault = Fault.OOM if had_oom else Fault.NAN_LOSS
        return dict(fault=fault, origins=origins)

    def _limits(self, step: PendingStep) -> tuple[float, float]:
        """The largest norm and loss that the device lets through."""
        safe_norm, hold = self._update.safe_norm, self._hold
        if hold is None:
            return safe_norm, math.inf
        bound = self._update.bound(step.plan)
        norm = hold.norm.limit if hold.norm.limit < bound else math.inf
        judges_loss = bound == math.inf and not self._ranks.share_gradients
        loss = hold.loss.limit if judges_loss else math.inf
        return min(norm, safe_norm), loss

    def _judge(
        self, step: PendingStep, norms: list[float], loss: float
    ) -> Fault | None:
        """What to skip a finite step for; None if it is to be applied."""
        norm, ranks, update = norms[0], self._ranks, self._update
        if len(norms) > 1:
            norm = grad_health.combined_norm(norms, step.plan.norm_type)
        if norm > update.safe_norm and (
            ranks.is_bad(update.harms_state(step, norms))
        ):
            return Fault.SPIKE
        hold = self._hold
        if hold is None or not (
            norm > hold.norm.limit or hold.loss.limit < loss < math.inf
        ):
            return None
        bound = update.bound(step.plan)
        if norm > hold.norm.limit:
            # What clipping bounds is not held.
            if bound <= hold.norm.limit or not ranks.agree_on_spike():
                return None
        elif bound < math.inf or ranks.share_gradients:
            # A loss is each rank's own, gradients mostly are not.
            return None
        return hold.judge(step, norm, loss)

    def _skip(
        self, step: PendingStep, found: list[tuple[Tensor, str]]
    ) -> None:
        step.drop_gradients()
        culprits = tuple(Culprit(self._names[p], kind) for p, kind in found)
        # Only the rank with the bad loss has seen it; all must scale alike.
        verdict = self._ranks.resolve_bad(
            step.all_finite(),
            step.part_norms.device,
            culprits=culprits,
            had_oom=step.had_oom,
        )
        if verdict is None:
            # All other ranks have applied this step: this one gets that
            # update with its next step.
            self.loss_scaler.note_clean_step()
            self._buffers.keep_step()
            facts = self._describe_dropped(step) if step.all_dropped else {}
            self._report(step, Outcome.APPLIED, **facts)
            return
        scaler = self.loss_scaler
        if verdict.had_oom or step.had_oom:
            fault = Fault.OOM
        elif verdict.loss_is_bad:
            fault = Fault.NAN_LOSS
        elif scaler.can_shrink and not verdict.behind:
            fault = Fault.OVERFLOW
        else:
            fault = Fault.NAN_GRAD
        can_fall = fault is Fault.OVERFLOW and scaler.is_moving
        if not verdict.behind:
            self._back_off(fault)
        self._buffers.undo_step()
        if verdict.leader is not None:
            copy_optimizer(self.optimizer, self.clip, verdict.leader)
            self._update.reset()
        self._report(
            step,
            Outcome.SKIPPED,
            fault=fault,
            scale_can_fall=can_fall,
            culprits=verdict.culprits or culprits,
            origins=verdict.origins,
            copied_from=verdict.leader,
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
            self.loss_scaler.note_bad_gradients()

    def _report_nothing(self, step: PendingStep) -> None:
        """Report a step without a gradient."""
        if step.is_lost:
            fault = Fault.OOM if step.had_oom else Fault.NAN_LOSS
            self._back_off(fault)
            self._buffers.undo_step()
            self._report(step, Outcome.SKIPPED, fault=fault)
            return
        self._buffers.keep_step()
        self._warn_once(
            'empty',
            _(
                'mmstable: Iter {iteration}: no parameter has a gradient, so '
                'there is nothing to update. Is every parameter frozen, or '
                'is the loss detached?',
                iteration=step.iteration,
            ),
        )
        if not self.loss_scaler.enabled:  # torch's own would refuse
            self.optimizer.step(**step.kwargs)
        self._report(step, Outcome.EMPTY)

    def _warn_once(self, about: str, text: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            print_log(text, logger='current', level=logging.WARNING)

    def _report(
        self, step: PendingStep, outcome: Outcome, **facts: Any
    ) -> None:
        report = StepReport(
            iteration=step.iteration,
            time=step.time,
            outcome=outcome,
            wrapper=self.steps.wrapper,
            loss_scale=step.loss_scale,
            next_loss_scale=self.loss_scaler.value,
            loss=step.reported_loss,
            micro_batches=step.all_iterations,
            dropped_micro_batches=step.all_dropped,
            **facts,
        )
        self.steps.add(report, step.bad_terms)

    def _publish_alone(self, report: StepReport) -> None:
        """Write the scalars of a step that no monitor publishes."""
        if self._scalars is None:
            scaled = self.loss_scaler.enabled
            self._scalars = StepScalars(self.message_hub, scaled=scaled)
        self._scalars.write(report, self.steps.tally)
