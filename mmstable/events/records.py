"""The records of an event file, one class for each ``event``.

Fields are written under their own names, so these classes are the schema;
``docs/en/event_file.md`` tells what they mean to other programs. Adding a
field with a default, or a class, keeps :data:`SCHEMA`; any other change
raises it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mmstable.events import Culprit, Fault, Origin

SCHEMA = 1


@dataclass(frozen=True)
class Event:
    """What every record has.

    Args:
        iteration (int): Training iterations done so far, the one that the
            record is about included.
        time (float): Seconds since 1970.
    """

    event: ClassVar[str]

    iteration: int
    time: float


@dataclass(frozen=True)
class WrapperSetup:
    """An optimizer wrapper as it starts into a run.

    Args:
        type (str): Its class.
        optimizer (str): The class of its optimizer.
        accumulative_counts (int): Iterations that make one step.
        dtype (str, optional): What autocast casts to, if the wrapper says.
        clip_grad (Mapping, optional): The wrapper's own setting.
        clip (str, optional): The clipping in force, also if a hook set it,
            in words; for wrappers of mmstable.
        loss_scale (float, optional): The scale of the first step; None
            without loss scaling.
        scale_policy (Mapping, optional): How that scale moves, for wrappers
            of mmstable.
    """

    type: str
    optimizer: str
    accumulative_counts: int
    dtype: str | None
    clip_grad: Mapping[str, Any] | None
    clip: str | None
    loss_scale: float | None
    scale_policy: Mapping[str, Any] | None


@dataclass(frozen=True)
class RunStart(Event):
    """The header: always the first line, and nowhere else.

    Its ``iteration`` is the one that the run goes on from: 0, or that of the
    checkpoint it resumed.

    Args:
        schema (int): Version of the file format.
        rank (int): Which process of the run wrote the file.
        world_size (int): How many processes there are.
        host (str): Name of the machine.
        pid (int): Process id.
        versions (Mapping): Of mmstable, mmengine, torch and python.
        device (str): Where the model is, as in torch.
        device_name (str, optional): What the driver calls that device.
        seed (int, optional): The seed of the run.
        max_iterations (int): The iteration that the run is to end with.
        config_sha256 (str): Digest of the config's ``pretty_text``.
        wrappers (Mapping): Optimizer wrappers by name; a single one is
            called 'optim_wrapper'.
        custom_hooks (tuple): ``custom_hooks`` of the config.
    """

    event: ClassVar[str] = 'run_start'

    schema: int
    rank: int
    world_size: int
    host: str
    pid: int
    versions: Mapping[str, str]
    device: str
    device_name: str | None
    seed: int | None
    max_iterations: int
    config_sha256: str
    wrappers: Mapping[str, WrapperSetup]
    custom_hooks: tuple[Any, ...]


@dataclass(frozen=True)
class StepFault(Event):
    """An optimizer step that went wrong, whole or in part.

    Args:
        wrapper (str): Name of the optimizer wrapper.
        rank (int): The process that saw it.
        outcome (str): 'skipped', or 'applied' if only some iterations of an
            accumulation window were left out.
        fault (str): A value of :class:`mmstable.events.Fault`.
        loss_scale (float): Scale of the loss in this step.
        next_loss_scale (float): Scale from the next step on.
        culprits (tuple[Culprit]): All parameters whose gradients were not
            finite.
        dropped_micro_batches (int): Iterations of the window that were left
            out.
        losses (Mapping): Losses of this iteration on this rank, by name.
        loss_terms (tuple[str]): Which losses were not finite, in any
            iteration of the window. Defaults to ().
        origins (tuple[Origin]): The ranks where the fault began; none with
            one process, or if nobody knows. Defaults to ().
        copied_from (int, optional): The rank whose state has replaced that
            of the origins, which had missed an update. Defaults to None.
    """

    event: ClassVar[str] = 'step_fault'

    wrapper: str
    rank: int
    outcome: str
    fault: str
    loss_scale: float
    next_loss_scale: float
    culprits: tuple[Culprit, ...]
    dropped_micro_batches: int
    losses: Mapping[str, float]
    loss_terms: tuple[str, ...] = ()
    origins: tuple[Origin, ...] = ()
    copied_from: int | None = None


@dataclass(frozen=True)
class Poisoned(Event):
    """A state of the run that was not saved because it is not finite.

    Args:
        culprits (tuple[Culprit]): The entries of the checkpoint that hold
            NaN or Inf.
    """

    event: ClassVar[str] = Fault.POISONED.value

    culprits: tuple[Culprit, ...]


@dataclass(frozen=True)
class ReplicasDiverged(Event):
    """Ranks that should hold the same state, but do not.

    Args:
        name (str): The first parameter, buffer or optimizer state that
            differs.
        count (int): How many differ.
        ranks (tuple[int]): The ranks that are not like the others.
        action (str): What was done: 'warn', 'repair' or 'stop'.
    """

    event: ClassVar[str] = 'replicas_diverged'

    name: str
    count: int
    ranks: tuple[int, ...]
    action: str


@dataclass(frozen=True)
class GuardIntervention(Event):
    """What DivergenceGuardHook did about a fault of the run.

    Args:
        action (str): A value of :class:`mmstable.events.Action`.
        fault (str): A value of :class:`mmstable.events.Fault`.
        reason (str): The same in words.
        since (int): The iteration that it began with.
        subject (str): What was found bad: 'loss', 'grad_norm', or the name
            of an optimizer wrapper.
        culprits (tuple[Culprit]): Entries of the state that are not finite.
        restored (int, optional): The iteration that the run went back to.
        source (str, optional): 'memory', or the checkpoint it went back to.
        lr_factor (float): What the learning rate of the schedule is
            multiplied by from now on.
    """

    event: ClassVar[str] = 'intervention'

    action: str
    fault: str
    reason: str
    since: int
    subject: str
    culprits: tuple[Culprit, ...]
    restored: int | None
    source: str | None
    lr_factor: float


@dataclass(frozen=True)
class InjectedFault(Event):
    """A fault that FaultInjectorHook has put into the run.

    Args:
        rank (int): The process that it happened to.
        kind (str): As in the hook's config.
        target (str): What was hit; see :class:`mmstable.events.Injection`.
        value (str): What was put there.
    """

    event: ClassVar[str] = 'injected_fault'

    rank: int
    kind: str
    target: str
    value: str


@dataclass(frozen=True)
class ScaleChange(Event):
    """A loss scale that moved, for whatever reason.

    Args:
        wrapper (str): Name of the optimizer wrapper.
        loss_scale (float): Scale until now.
        next_loss_scale (float): Scale from the next step on.
    """

    event: ClassVar[str] = 'scale_change'

    wrapper: str
    loss_scale: float
    next_loss_scale: float


@dataclass(frozen=True)
class WrapperSample:
    """An optimizer wrapper at a heartbeat.

    Args:
        lr (float, optional): Learning rate of the first parameter group.
        grad_norm (float, optional): Norm before clipping in the newest step;
            None if it was not finite or the wrapper does not report it.
        loss_scale (float, optional): The current scale; None without loss
            scaling.
    """

    lr: float | None
    grad_norm: float | None
    loss_scale: float | None


@dataclass(frozen=True)
class Heartbeat(Event):
    """A sample of a run, taken in regular intervals.

    Args:
        losses (Mapping): Losses of this iteration, by name.
        wrappers (Mapping): Samples of the optimizer wrappers, by name.
        iteration_time (float, optional): Mean seconds for an iteration since
            the last heartbeat, data loading included, validation not.
        host_memory (int, optional): Resident bytes of this process; None
            without psutil.
        device_memory (int, optional): Allocated bytes on the device; None on
            a CPU.
        device_memory_peak (int, optional): The most that ever was allocated.
    """

    event: ClassVar[str] = 'heartbeat'

    losses: Mapping[str, float]
    wrappers: Mapping[str, WrapperSample]
    iteration_time: float | None
    host_memory: int | None
    device_memory: int | None
    device_memory_peak: int | None


@dataclass(frozen=True)
class WrapperTotals:
    """What became of the steps of one wrapper, since the header.

    Args:
        applied (int): Steps that updated the weights.
        skipped (int): Steps that were left out.
        faults (Mapping): Skipped steps by fault. A model that steps several
            times in one iteration shows only its last step, so these may be
            fewer than ``skipped``.
        dropped_micro_batches (int): Iterations that were left out of their
            accumulation windows.
    """

    applied: int = 0
    skipped: int = 0
    faults: Mapping[str, int] = field(default_factory=dict)
    dropped_micro_batches: int = 0


@dataclass(frozen=True)
class RunEnd(Event):
    """The last line of a run that left its training loop.

    Args:
        reason (str): 'finished'; 'stopped' before the last iteration; or
            'exception'.
        wrappers (Mapping): Totals by wrapper, of those that report them.
        lost_events (int): Records that could not be written.
        traceback (str, optional): Of the exception. Defaults to None.
    """

    event: ClassVar[str] = 'run_end'

    reason: str
    wrappers: Mapping[str, WrapperTotals]
    lost_events: int
    traceback: str | None = None


@dataclass(frozen=True)
class UnknownEvent(Event):
    """A record that only a newer mmstable understands.

    Args:
        name (str): Its ``event``.
        data (Mapping): The whole JSON object.
    """

    name: str
    data: Mapping[str, Any]


EVENTS: Mapping[str, type[Event]] = {
    cls.event: cls
    for cls in (
        RunStart,
        StepFault,
        Poisoned,
        ReplicasDiverged,
        GuardIntervention,
        InjectedFault,
        ScaleChange,
        Heartbeat,
        RunEnd,
    )
}
