"""What can happen to a run, one class for each ``event`` of its file.

A bad step is a :class:`~mmstable.events.StepReport`. Fields are written
under their own names, so these classes are the schema;
``docs/en/event_file.md`` tells what they mean to other programs. Adding a
field with a default, or a class, keeps :data:`SCHEMA`; any other change
raises it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mmstable.events.event import Event
from mmstable.events.live_records import LiveChange
from mmstable.events.machine_records import (
    CheckpointFailed,
    Hang,
    IterationProfile,
    MemoryAlarm,
    OutOfMemory,
)
from mmstable.events.number_records import FaultExplained, LowHeadroom
from mmstable.events.step_report import Culprit, Fault, StepReport, Word

SCHEMA = 1


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
        restarts (int): How often the run was started again before, by
            ``mmstable train --max-restarts`` or by torchrun. Defaults to 0.
        restarted_after (str): What ended it before, if that is known.
            Defaults to ''.
        space (str, optional): Where the process id has a meaning: the
            namespace of processes; '' if the system does not tell, None in
            files of an older mmstable. Defaults to None.
        born (str, optional): When the process began, by the kernel's count,
            likewise. Defaults to None.
        resume_command (str): The command line that started the run, without
            where it started from, if ``mmstable train`` did. Defaults to ''.
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
    restarts: int = 0
    restarted_after: str = ''
    space: str | None = None
    born: str | None = None
    resume_command: str = ''


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


class Action(Word):
    """What can be done about a fault, from the mildest to the last."""

    WARN = 'warn'
    SKIP = 'skip'
    LOWER_LR = 'lower_lr'
    ROLLBACK = 'rollback'
    STOP = 'stop'


@dataclass(frozen=True)
class Intervention(Event):
    """Something that DivergenceGuardHook did about a fault of the run.

    Args:
        action (Action): What was done.
        fault (Fault): About what.
        reason (str): The same in words.
        since (int): The iteration that it began with.
        subject (str): What was found bad: 'loss' or 'grad_norm', behind the
            name of its optimizer wrapper if there are several, or such a
            name alone. Defaults to ''.
        culprits (tuple[Culprit]): Entries of the state that are not finite.
            Defaults to ().
        restored (int, optional): The iteration that the run went back to.
            Defaults to None.
        source (str, optional): 'memory', or the checkpoint it went back to.
            Defaults to None.
        lr_factor (float): What the learning rate of the schedule is
            multiplied by from now on. Defaults to 1.0.
    """

    event: ClassVar[str] = 'intervention'

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
class Injection(Event):
    """A fault that FaultInjectorHook has put into a run.

    Args:
        rank (int): The process that it happened to.
        kind (str): As in the config.
        target (str): The parameter, buffer, loss or input that was hit; for
            the other kinds, the place: 'forward' or 'data'.
        value (str): What was put there: 'NaN', 'Inf', a factor, seconds, or
            the name of a signal or error.
    """

    event: ClassVar[str] = 'injected_fault'

    rank: int
    kind: str
    target: str
    value: str

    def __str__(self) -> str:
        return (
            f'Iter {self.iteration}: {self.kind}, {self.value} in '
            f"'{self.target}', rank {self.rank}"
        )


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
        clipped_norm (float, optional): Norm after clipping in the newest
            step; None without clipping. Defaults to None.
        module_norms (Mapping): Norms before clipping by module, of the newest
            step that was applied; at most 24 modules. Defaults to {}.
    """

    lr: float | None
    grad_norm: float | None
    loss_scale: float | None
    clipped_norm: float | None = None
    module_norms: Mapping[str, float] = field(default_factory=dict)


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
        skipped (int): Steps that were skipped.
        faults (Mapping): Skipped steps by fault.
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
        wrappers (Mapping): Totals by wrapper.
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
        StepReport,
        Poisoned,
        ReplicasDiverged,
        Intervention,
        FaultExplained,
        LowHeadroom,
        MemoryAlarm,
        OutOfMemory,
        Hang,
        CheckpointFailed,
        IterationProfile,
        Injection,
        LiveChange,
        ScaleChange,
        Heartbeat,
        RunEnd,
    )
}
