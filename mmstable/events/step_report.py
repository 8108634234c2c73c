"""What can happen to an optimizer step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, NamedTuple

from mmstable.events.event import Event


class Word(str, Enum):
    """One of some words, which prints as it is written in a file."""

    def __str__(self) -> str:
        return str(self.value)


class Outcome(Word):
    """What became of an optimizer step."""

    APPLIED = 'applied'
    SKIPPED = 'skipped'
    # No parameter had a gradient: nothing to apply, and nothing is wrong
    # with the numbers.
    EMPTY = 'empty'


class Fault(Word):
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
            the ranks averaged theirs; or 'reduced_gradient', after that. Or
            'memory' if it had none left for its batch.
    """

    rank: int
    node: str
    device: str
    where: str


@dataclass(frozen=True)
class StepReport(Event):
    """Everything that happened to one optimizer step.

    In an event file there are only steps with a fault.

    Args:
        outcome (Outcome): What became of the step.
        fault (Fault, optional): What was wrong: with the whole step if it
            was skipped, with some of its micro-batches if it was applied.
            Defaults to None.
        wrapper (str): Name of the optimizer wrapper; '' if nobody has
            subscribed to its steps. Defaults to ''.
        rank (int): The process that reports it. Defaults to 0.
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
        loss (float, optional): The loss that the gradients come from, on this
            rank, averaged over the window; None if it was not finite, or if
            nobody watches for spikes. Defaults to None.
        culprits (tuple[Culprit]): The parameters whose gradients were not
            finite. Defaults to ().
        scale_can_fall (bool): Whether a lower loss scale can still mend what
            was wrong. Defaults to False.
        micro_batches (int): Iterations of the accumulation window, of all
            ranks that average their gradients. Defaults to 1.
        dropped_micro_batches (int): Iterations of an accumulation window
            that were left out because their loss was not finite, or because
            they did not fit in memory. Defaults to 0.
        losses (Mapping): Of a step with a fault, the losses of its iteration
            on this rank, by name. Defaults to {}.
        loss_terms (tuple[str]): Names of the losses that were not finite.
            Defaults to ().
        origins (tuple[Origin]): The ranks where the fault began; none with
            one process, or if nobody knows. Defaults to ().
        copied_from (int, optional): The rank whose weights and optimizer
            state have replaced those of the origins, which had missed the
            update before this one. Defaults to None.
    """

    event: ClassVar[str] = 'step_fault'

    outcome: Outcome
    fault: Fault | None = None
    wrapper: str = ''
    rank: int = 0
    loss_scale: float = 1.0
    next_loss_scale: float = 1.0
    grad_norm: float | None = None
    clip_coef: float | None = None
    clips: tuple[ClipRecord, ...] = ()
    clipped_norm: float | None = None
    loss: float | None = None
    culprits: tuple[Culprit, ...] = ()
    scale_can_fall: bool = False
    micro_batches: int = 1
    dropped_micro_batches: int = 0
    losses: Mapping[str, float] = field(default_factory=dict)
    loss_terms: tuple[str, ...] = ()
    origins: tuple[Origin, ...] = ()
    copied_from: int | None = None

    @property
    def applied(self) -> bool:
        """Whether the weights were updated."""
        return self.outcome is Outcome.APPLIED

    @property
    def skipped(self) -> bool:
        """Whether the step was skipped because of a fault."""
        return self.outcome is Outcome.SKIPPED

    @property
    def bad_share(self) -> float:
        """How much of the step is lost to a fault, or spoiled by it."""
        if self.fault is None:
            return 0.0
        if self.applied and self.dropped_micro_batches:
            return self.dropped_micro_batches / self.micro_batches
        return 1.0


def classify(loss_is_finite: bool, scale_can_shrink: bool) -> Fault:
    """What a step with a non-finite gradient suffers from.

    Args:
        loss_is_finite (bool): Whether the loss itself was finite.
        scale_can_shrink (bool): Whether the loss is scaled, and by more than
            the lowest allowed scale.
    """
    if not loss_is_finite:
        return Fault.NAN_LOSS
    return Fault.OVERFLOW if scale_can_shrink else Fault.NAN_GRAD
