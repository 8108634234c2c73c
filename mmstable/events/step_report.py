"""What can happen to an optimizer step.

One training iteration, and where each record is made::

    before_train_iter
      forward under optim_context()
      update_params(loss)
        backward                 the loss is checked, not waited for
        step                     gradient norms -> verdict -> update or skip
        zero_grad
    after_train_iter             optim_wrapper.last_step is a StepReport
      RuntimeInfoHook            mmengine reads the loss: the device is idle
      hooks of mmstable          obey last_step; what DivergenceGuardHook
                                 does about it is an Intervention
      EMAHook, LoggerHook, ParamSchedulerHook, CheckpointHook
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Outcome(str, Enum):
    """What became of an optimizer step."""

    APPLIED = 'applied'
    SKIPPED = 'skipped'
    # No parameter had a gradient: nothing to apply, and nothing is wrong
    # with the numbers.
    EMPTY = 'empty'


class Fault(str, Enum):
    """What goes wrong: with a step, or with the whole run."""

    OVERFLOW = 'overflow'
    NAN_LOSS = 'nan_loss'
    NAN_GRAD = 'nan_grad'
    # A weight, a buffer or an optimizer state is not finite.
    POISONED = 'poisoned'
    # Finite, but far outside the recent level.
    SPIKE = 'spike'
    # The device had no memory left.
    OOM = 'oom'


class Culprit(NamedTuple):
    """A parameter whose gradient was not finite.

    Args:
        name (str): Its name in ``model.named_parameters()``.
        kind (str): 'NaN' or 'Inf'.
    """

    name: str
    kind: str


class ClipRecord(NamedTuple):
    """How far parameters that are clipped together were clipped.

    Args:
        group (str): Their modules; 'all', or 'rest' for those that no limit
            applies to.
        norm (float): Norm of their unscaled gradients before clipping.
        coef (float): What those were multiplied by; 1.0 if left alone.
    """

    group: str
    norm: float
    coef: float


class Origin(NamedTuple):
    """Where a fault of a distributed run began.

    Args:
        rank (int): The process.
        node (str): Name of its machine.
        device (str): Its device, as in torch.
        where (str): What was not finite there: 'loss'; 'gradient', before
            the ranks averaged theirs; or 'reduced_gradient', after that.
    """

    rank: int
    node: str
    device: str
    where: str


@dataclass(frozen=True)
class StepReport:
    """Everything that happened to one optimizer step.

    Args:
        iteration (int): Training iterations done so far, this one included,
            as in mmengine's log lines.
        outcome (Outcome): What became of the step.
        fault (Fault, optional): What was wrong: with the whole step if it
            was skipped, with some of its micro-batches if it was applied.
            Defaults to None.
        loss_scale (float): Scale of the loss in this step. Defaults to 1.0.
        next_loss_scale (float): Scale from the next step on. Defaults to 1.0.
        grad_norm (float, optional): Norm of the unscaled gradients before
            clipping; None if it was not finite. Defaults to None.
        clip_coef (float, optional): What clipping multiplied the gradients
            by, the smallest if there are several groups; None without
            clipping by norm. Defaults to None.
        clips (tuple[ClipRecord]): The same for each group. Defaults to ().
        clipped_norm (float, optional): Norm of the unscaled gradients after
            clipping; None without clipping, and for sharded gradients that
            are clipped by value. Defaults to None.
        culprits (tuple[Culprit]): The parameters whose gradients were not
            finite. Defaults to ().
        dropped_micro_batches (int): Iterations of an accumulation window
            that were left out because their loss was not finite.
            Defaults to 0.
        loss_terms (tuple[str]): Names of the losses that were not finite.
            Defaults to ().
        origins (tuple[Origin]): The ranks where the fault began; none with
            one process, or if nobody knows. Defaults to ().
        copied_from (int, optional): The rank whose weights and optimizer
            state have replaced those of the origins, which had missed the
            update before this one. Defaults to None.
    """

    iteration: int
    outcome: Outcome
    fault: Fault | None = None
    loss_scale: float = 1.0
    next_loss_scale: float = 1.0
    grad_norm: float | None = None
    clip_coef: float | None = None
    clips: tuple[ClipRecord, ...] = ()
    clipped_norm: float | None = None
    culprits: tuple[Culprit, ...] = ()
    dropped_micro_batches: int = 0
    loss_terms: tuple[str, ...] = ()
    origins: tuple[Origin, ...] = ()
    copied_from: int | None = None

    @property
    def applied(self) -> bool:
        """Whether the weights were updated."""
        return self.outcome is Outcome.APPLIED

    @property
    def skipped(self) -> bool:
        """Whether the step was left out because of a fault."""
        return self.outcome is Outcome.SKIPPED


class Action(str, Enum):
    """What can be done about a fault, from the mildest to the last."""

    WARN = 'warn'
    SKIP = 'skip'
    LOWER_LR = 'lower_lr'
    ROLLBACK = 'rollback'
    STOP = 'stop'


@dataclass(frozen=True)
class Intervention:
    """Something that was done about a fault of the run.

    Args:
        iteration (int): Training iterations done, this one included.
        action (Action): What was done.
        fault (Fault): About what.
        reason (str): The same in words.
        since (int): The iteration that it began with.
        subject (str): What was found bad: 'loss', 'grad_norm', or the name
            of an optimizer wrapper. Defaults to ''.
        culprits (tuple[Culprit]): Entries of the state that are not finite.
            Defaults to ().
        restored (int, optional): The iteration that the run went back to.
            Defaults to None.
        source (str, optional): 'memory', or the checkpoint it went back to.
            Defaults to None.
        lr_factor (float): What the learning rate of the schedule is
            multiplied by from now on. Defaults to 1.0.
    """

    iteration: int
    action: Action
    fault: Fault
    reason: str
    since: int
    subject: str = ''
    culprits: tuple[Culprit, ...] = ()
    restored: int | None = None
    source: str | None = None
    lr_factor: float = 1.0


@dataclass(frozen=True)
class Injection:
    """A fault that FaultInjectorHook has put into a run.

    Args:
        iteration (int): The iteration it is part of, counted from 1.
        rank (int): The process that it happened to.
        kind (str): As in the config.
        target (str): The parameter, buffer, loss or input that was hit; for
            the other kinds, the place: 'forward' or 'data'.
        value (str): What was put there: 'NaN', 'Inf', a factor, seconds, or
            the name of a signal or error.
    """

    iteration: int
    rank: int
    kind: str
    target: str
    value: str
