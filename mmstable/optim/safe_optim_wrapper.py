"""The wrapper for training without autocast."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable
from weakref import ref

import torch
from mmengine.dist import get_world_size
from mmengine.logging import MessageHub, print_log
from mmengine.optim import OptimWrapper
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mmstable.distributed.step_consensus import StepConsensus
from mmstable.events import StepReport
from mmstable.events.step_queue import StepQueue
from mmstable.events.step_scalars import StepScalars
from mmstable.messages import _
from mmstable.numerics.clip_settings import Clip, parse_clip_grad
from mmstable.numerics.loss_scaler import LossScaler
from mmstable.numerics.scale_policy import ScalePolicy
from mmstable.optim.buffer_protection import BufferProtection
from mmstable.optim.parameter_names import ParameterNames
from mmstable.optim.safe_closure import SafeClosure
from mmstable.optim.safe_step import SafeStep
from mmstable.optim.saved_state import keep_configured_implementation
from mmstable.optim.trial_backward import backward_if_finite
from mmstable.optim.update import Update
from mmstable.registry import OPTIM_WRAPPERS, register_globally
from mmstable.settings import flag, integer


@register_globally(OPTIM_WRAPPERS)
class SafeOptimWrapper(OptimWrapper):
    """An ``OptimWrapper`` that skips steps with NaN or Inf gradients.

    A bad step leaves weights, buffers, optimizer state and step counters as
    they were. What became of the newest step is in :attr:`last_step`; hooks
    are told of every step by :class:`~mmstable.events.run_monitor.RunMonitor`.

    mmengine's own methods are called by the name of their class here, not
    through ``super()``: in :class:`SafeAmpOptimWrapper` the next class in
    line is mmengine's ``AmpOptimWrapper``, whose step is the one replaced.

    Args:
        optimizer (Optimizer): The optimizer.
        accumulative_counts (int): Iterations that make one step.
            Defaults to 1.
        clip_grad (dict, optional): As in mmengine: ``max_norm`` and
            ``norm_type``, or ``type='value'`` and ``clip_value``.
            Defaults to None.
        protect_buffers (bool): Whether running statistics, as those of
            BatchNorm, are restored when a step is skipped: what the forward
            passes inside its ``optim_context`` have changed. Takes the
            memory of one copy of these, of two with accumulation. Defaults
            to True.
        name_ranks (bool): With DDP, whether to look at each rank's gradients
            before they are averaged, to say on which rank a NaN began. Takes
            the place of DDP's communication hook, if that is free. Defaults
            to True.
    """

    is_stock = False
    # Whether the user says that gradients are sharded.
    _use_fsdp = False
    # Scaling is for mixed precision; here the scale is 1.
    loss_scaler = LossScaler(ScalePolicy(), enabled=False)

    def __init__(
        self,
        optimizer: Optimizer,
        accumulative_counts: int = 1,
        clip_grad: dict | None = None,
        protect_buffers: bool = True,
        name_ranks: bool = True,
    ) -> None:
        owner = type(self).__name__
        accumulative_counts = integer(
            owner, 'accumulative_counts', accumulative_counts
        )
        flag(owner, 'protect_buffers', protect_buffers)
        clip = parse_clip_grad(clip_grad)
        OptimWrapper.__init__(
            self, optimizer, accumulative_counts, copy.copy(clip_grad)
        )
        self._names = ParameterNames(optimizer)
        self._update = Update(optimizer, self._names, clip)
        self._name_ranks = flag(owner, 'name_ranks', name_ranks)
        self._announced = False
        # The model of the last forward pass; mostly there is only one.
        self._current_model: Callable[[], Module | None] = lambda: None
        self._scalars: StepScalars | None = None
        self.steps = StepQueue(self._publish_alone)
        accumulates = accumulative_counts > 1
        self._buffers = BufferProtection(protect_buffers, accumulates)
        self._safe_step = SafeStep(
            optimizer,
            self._update,
            self.loss_scaler,
            self._names,
            self._buffers,
            self.steps,
            accumulates,
        )
        self._closure = SafeClosure(
            optimizer,
            self._update,
            self._names,
            self._buffers,
            self.steps,
            self._safe_step,
        )

    @property
    def last_step(self) -> StepReport | None:
        """What became of the newest step; None before the first one."""
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
    def _ranks(self) -> StepConsensus:
        return self._safe_step.ranks

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

    def initialize_count_status(
        self, model: Module, init_counts: int, max_counts: int
    ) -> None:
        """Learn the length of the training, and the model's names."""
        OptimWrapper.initialize_count_status(
            self, model, init_counts, max_counts
        )
        self.bind_model(model)

    def bind_model(self, model: Module) -> None:
        """Learn the names in a model before parts of it are trained.

        mmengine does not tell the wrappers of an ``OptimWrapperDict`` of the
        whole model.
        """
        # A wrapper that was built before its runner has the hub of no run,
        # or of another one.
        self.message_hub = MessageHub.get_current_instance()
        self._scalars = None
        self._learn(model)

    def subscribe(
        self, name: str, publish: Callable[[StepReport], None]
    ) -> None:
        """Have all steps published to one listener, once and in order.

        Args:
            name (str): What reports call this wrapper.
            publish (Callable): Called after an iteration with the final
                report of each of its steps.
        """
        self.steps.subscribe(name, publish)

    def unsubscribe(self) -> None:
        """End the subscription."""
        self.steps.unsubscribe()

    @contextmanager
    def optim_context(self, model: Module) -> Iterator[None]:
        """The context of a forward pass."""
        if self._safe_step.ahead is not None:
            # Free here: mmengine has read the last loss, nothing is queued.
            self._safe_step.resolve()
        if self._current_model() is not model:
            self._current_model = ref(model)
            self._learn(model)
            if self._name_ranks:
                self._ranks.look_at(model)
        self._buffers.before_forward(self.steps.iteration)
        try:
            if self._accumulative_counts == 1:
                # Every iteration makes a step, so DDP has to synchronise.
                yield
            else:
                with OptimWrapper.optim_context(self, model):
                    yield
        finally:
            self._buffers.after_forward()

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Back-propagate, unless the loss would spoil others of its step."""
        safe_step = self._safe_step
        if safe_step.ahead is not None:
            safe_step.resolve()
        self._buffers.before_backward()
        can_drop = self._accumulative_counts > 1 and self._can_drop()
        if can_drop and not torch.isfinite(loss.detach()).all():
            self._backward_or_drop(loss, kwargs)
        else:
            scaled = loss
            if safe_step.ranks.is_behind and self.should_sync():
                # So that no rank updates by gradients of old weights.
                scaled = scaled * math.nan
            if self.loss_scaler.is_enabled():
                scaled = self.loss_scaler.scale(scaled)
            scaled.backward(**kwargs)
            self._buffers.after_forward()
            # Not before: a backward pass that fails can be done again.
            safe_step.watch(loss)
        self._inner_count += 1

    def leave_out_iteration(
        self,
        give: Callable[[float], None] | None = None,
        spoils: bool = False,
    ) -> None:
        """Leave out an iteration that does not fit in memory.

        Args:
            give (Callable, optional): Gives the other ranks, if they wait
                for them, gradients of this value. Defaults to None.
            spoils (bool): Whether it has left gradients behind, so that its
                whole step has to be skipped. Defaults to False.
        """
        # If others wait and there is nothing else, no average is left.
        has_rest = give is None or self._safe_step.has_losses
        keeps_step = has_rest and not spoils
        if give is not None:
            # All know by how much the average is too small then.
            give(0.0 if keeps_step else math.nan)
        if keeps_step:
            self._safe_step.drop(ran_out=True)
        else:
            self._safe_step.spoil(torch.tensor(math.nan))
        self._inner_count += 1
        if self.should_update():
            self.step()
            self.zero_grad()

    def _backward_or_drop(self, loss: Tensor, kwargs: dict[str, Any]) -> None:
        """Let gradients decide, as they do where nothing is accumulated."""
        # A constant that is not finite does no harm.
        is_finite = backward_if_finite(
            self.loss_scaler.scale(loss), self._names.parameters(), **kwargs
        )
        self._buffers.after_forward()
        if is_finite:
            self._safe_step.watch(loss)
        else:
            self._safe_step.drop()

    def _can_drop(self) -> bool:
        # A rank that leaves out its backward pass must not keep the others
        # waiting for its gradients.
        return self._ranks.backward_is_local and (
            get_world_size() == 1 or not self.should_sync()
        )

    def step(self, **kwargs: Any) -> None:
        """Update the weights, or skip the step if a gradient is bad.

        Args:
            **kwargs: For ``optimizer.step``. With a ``closure`` the optimizer
                computes loss and gradients by itself.
        """
        iteration = self.steps.iteration
        if iteration is None:
            iteration = self._inner_count
        if kwargs and kwargs.get('closure') is not None:
            is_scaled = self.loss_scaler.is_enabled()
            self._closure.step(iteration, is_scaled, **kwargs)
        else:
            self._safe_step.step(iteration, kwargs)

    def zero_grad(self, **kwargs: Any) -> None:
        """Clear the gradients."""
        if not kwargs.get('set_to_none', True):
            # Zeros would overwrite gradients whose verdict is unread.
            self.resolve()
        self.optimizer.zero_grad(**kwargs)

    def state_dict(self) -> dict:
        """The optimizer's state, and the tally of this wrapper's steps."""
        self.resolve()
        state = OptimWrapper.state_dict(self)
        state['safe_step'] = self.steps.tally.state_dict()
        return state

    def load_state_dict(self, state_dict: dict) -> None:
        """Load a state of this class or of any mmengine wrapper."""
        state = keep_configured_implementation(self.optimizer, state_dict)
        tally = state.pop('safe_step', None)
        if tally is not None:
            self.steps.tally.load_state_dict(tally)
        self.forget()
        OptimWrapper.load_state_dict(self, state)

    def forget(self) -> None:
        """Drop what is known of the optimizer: its state is replaced."""
        self._safe_step.forget()

    def undo_failed_iteration(self) -> bool:
        """Undo what forward passes did, if their iteration has failed.

        Returns:
            bool: Whether all buffers are what they were before it.
        """
        return self._buffers.undo_failed(self.steps.iteration)

    def resolve(self) -> None:
        """Wait for the verdict on the newest step."""
        self._safe_step.resolve()

    def record_losses(self, outputs: Any) -> None:
        """Publish the steps of an iteration that is over.

        The wrapper itself sees nothing but the sum of all losses. Called by
        :class:`~mmstable.events.run_monitor.RunMonitor` once an iteration.

        Args:
            outputs (Mapping, optional): What the model's ``train_step`` gave.
        """
        self._safe_step.record_losses(outputs)

    def limit_steps(self, loss: float, norm: float) -> None:
        """Skip steps from now on that are above these limits, as spikes.

        On an accelerator the device compares, and the host does not wait.
        Reports of steps have their loss from now on.

        Args:
            loss (float): The largest loss; Inf for any.
            norm (float): The largest norm of the unscaled gradients before
                clipping; Inf for any.
        """
        self._safe_step.limit(loss, norm)

    def _learn(self, model: Module) -> None:
        """Learn what can only be learned from the model, once for each."""
        self._buffers.learn(model)
        if self._names.learn(model):
            self._ranks.learn(model, self._use_fsdp)
        if not self._announced:
            self._announced = True
            print_log(self._description(), logger='current')

    def _description(self) -> str:
        return _(
            'mmstable: fp32 training protected{details}',
            details=self._details([]),
        )

    def _details(self, details: list[str]) -> str:
        name = self.steps.wrapper
        if name not in ('', 'optim_wrapper'):
            # One of several, as of a GAN.
            details = [name, *details]
        if self.clip is not None:
            details = [*details, _('clip {clip}', clip=self.clip)]
        return _(' ({details})', details=details) if details else ''

    def _publish_alone(self, report: StepReport) -> None:
        """Write the scalars of a step that nobody has subscribed to."""
        if self._scalars is None:
            scaled = self.loss_scaler.is_enabled()
            self._scalars = StepScalars(self.message_hub, scaled=scaled)
        self._scalars.write(report, self.steps.tally)
