"""The records of a run: one class for each ``event`` of its event file.

A bad step is a :class:`~mmstable.events.StepReport`. Fields are written
under their own names, so these classes are the schema;
``docs/en/event_file.md`` explains them to other programs. Adding a field
with a default, or a class, keeps :data:`SCHEMA`; any other change raises it.

Types are evaluated here, because the codec builds its readers from them:
Python 3.9 knows ``Optional``, but not ``| None``.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, NamedTuple, Optional, TypeVar

_E = TypeVar('_E', bound='Event')

SCHEMA = 1
# The classes of all records, by their `event`.
EVENTS: 'dict[str, type[Event]]' = {}


@dataclass(frozen=True)
class Event:
    """Something that happened to a run, and a line of its event file.

    The fields of its subclasses are the schema of that file. An event is
    announced by :meth:`mmstable.events.monitor.RunMonitor.emit`.

    Args:
        iteration (int): Training iterations done so far, the one that the
            event is about included.
        time (float): Seconds since 1970. Events that differ in nothing else
            are equal.
    """

    event: ClassVar[str]

    iteration: int
    time: float = field(compare=False)

    def __init_subclass__(cls, event: str = '') -> None:
        if event:
            cls.event = event
            EVENTS[event] = cls

    @classmethod
    def now(cls: type[_E], iteration: int, **facts: Any) -> _E:
        """The event that happens at this moment."""
        return cls(iteration=iteration, time=time.time(), **facts)


@dataclass(frozen=True)
class LiveChange(Event, event='live_change'):
    """A request to a running training, through ``LiveProbeHook``.

    Args:
        what (str): 'lr', 'clip', 'save', 'stop', or 'code' for Python code
            that was run, whatever it has changed.
        rank (int): The process that reports it. Defaults to 0.
        wrapper (str): The optimizer wrapper that it is about, if it is about
            one. Defaults to ''.
        before (float, optional): The learning rate of its first group, or
            the clip limit, if that was a number. Defaults to None.
        after (float, optional): The same from now on. Defaults to None.
        text (str): The beginning of the code. Defaults to ''.
    """

    what: str
    rank: int = 0
    wrapper: str = ''
    before: Optional[float] = None
    after: Optional[float] = None
    text: str = ''


@dataclass(frozen=True)
class MemoryAlarm(Event, event='memory_alarm'):
    """A resource of the machine that runs out.

    Args:
        resource (str): 'host' for memory in bytes, 'shared_memory' for
            /dev/shm in bytes, 'descriptors' for open files of one process.
        holder (str): Whose use grows most: 'main_process', 'workers' or ''.
        used (int): What is used.
        limit (int): What may be used.
        left (int): What is left.
        source (str): Who sets the limit: 'machine', 'cgroup' or 'setting'.
        action (str): What is done: 'warn', 'save' or 'restart'.
        rank (int): The process that it happens to. Defaults to 0.
        growth (float): What it grows by in an iteration. Defaults to 0.0.
        iterations_left (float, optional): Iterations to the limit, if it
            grows. Defaults to None.
        seconds_left (float, optional): Seconds to the limit, if it grows.
            Defaults to None.
        workers_share (float): The share of the run's host memory that
            workers hold. Defaults to 0.0.
        workers (int): Workers of the training data. Defaults to 0.
        prefetch (int): Batches that each of them reads ahead. Defaults to 0.
    """

    resource: str
    holder: str
    used: int
    limit: int
    left: int
    source: str
    action: str
    rank: int = 0
    growth: float = 0.0
    iterations_left: Optional[float] = None
    seconds_left: Optional[float] = None
    workers_share: float = 0.0
    workers: int = 0
    prefetch: int = 0


@dataclass(frozen=True)
class OutOfMemory(Event, event='out_of_memory'):
    """A batch that did not fit in memory, and what was done about it.

    Args:
        phase (str): Where memory ran out: 'forward', 'backward',
            'optimizer', 'validation' or 'test'.
        rung (str): What has helped: 'retry', 'offload', 'recompute',
            'chunk/N', 'split/N'; or 'skip' if the batch, or a sample of it,
            was left out; or 'stop'.
        rank (int): The process that it happened to. Defaults to 0.
        gradients (str): How they compare with those of the whole batch:
            'equal'; 'rounding', which differ in the last digits;
            'approximate'; or '' if there are none. Defaults to ''.
        reason (str): Why they are only approximate, or why nothing milder
            was done; in the language of the run. Defaults to ''.
        shapes (tuple[str]): Names, shapes and types of the tensors of the
            batch. Defaults to ().
        samples (tuple[str]): What its samples are called; if some were left
            out, these. Defaults to ().
        device (str): The device, as in torch. Defaults to ''.
        requested (int, optional): Bytes that were asked for. Defaults to
            None.
        allocated (int, optional): Bytes of tensors on the device then.
            Defaults to None.
        reserved (int, optional): Bytes that the allocator held then.
            Defaults to None.
        peak (int, optional): The most bytes of tensors until then. Defaults
            to None.
        report (str, optional): The file with all details. Defaults to
            None.
    """

    phase: str
    rung: str
    rank: int = 0
    gradients: str = ''
    reason: str = ''
    shapes: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    device: str = ''
    requested: Optional[int] = None
    allocated: Optional[int] = None
    reserved: Optional[int] = None
    peak: Optional[int] = None
    report: Optional[str] = None


@dataclass(frozen=True)
class CheckpointFailed(Event, event='checkpoint_failed'):
    """A checkpoint that could not be written; training continues.

    Args:
        name (str): Its file.
        reason (str): What the disk, or the network, says.
    """

    name: str
    reason: str


@dataclass(frozen=True)
class Hang(Event, event='hang'):
    """A phase of training that takes too long.

    Args:
        rank (int): The process that reports it.
        phase (str): What it is doing: 'data', 'forward', 'backward', 'step',
            'hook', 'validation', 'checkpoint', 'resume', 'compile' or
            'other'.
        part (str): The class of the hook, or the part of a validation.
        seconds (float): For how long.
        limit (float): How long it may take.
        line (str): File, line and code, of a worker if that is waited for.
        behind (int, optional): The rank that the others wait for, if known.
        action (str): What is done: 'wait' or 'exit'.
        text (str): The same in words, in the language of the run.
        file (str): Where the stacks are.
    """

    rank: int
    phase: str
    part: str
    seconds: float
    limit: float
    line: str
    behind: Optional[int]
    action: str
    text: str
    file: str


@dataclass(frozen=True)
class IterationProfile(Event, event='iteration_profile'):
    """Where the time of a few iterations went, on rank 0.

    Args:
        iterations (int): How many were measured, this one being the last.
        seconds (float): What one took, validation left out.
        causes (tuple[str]): What makes it slow, the largest first: 'data',
            'module', 'hook', 'backward', 'step', 'straggler', 'validation',
            'rare'.
        text (str): The same in words, in the language of the run.
        phases (Mapping): Seconds of an iteration: 'data', 'forward',
            'backward', 'step', 'hooks', 'other'; 'train_step' in place of
            three of them if the model is compiled.
        hooks (Mapping): The slowest hooks, in seconds of an iteration.
            Defaults to {}.
        modules (Mapping): The slowest modules, in seconds of forward pass.
            Defaults to {}.
        workers (int): Workers of the training data. Defaults to 0.
        loading (str): What they did while training waited: 'busy', 'disk',
            'idle', 'starting', 'pause', 'main' without workers, or ''.
            Defaults to ''.
        straggler (int, optional): The rank that others wait for. Defaults to
            None.
        behind (float): Seconds that it is late by. Defaults to 0.0.
        gpu_busy (int, optional): Percent of the time that the GPU computed.
            Defaults to None.
    """

    iterations: int
    seconds: float
    causes: tuple[str, ...]
    text: str
    phases: Mapping[str, float]
    hooks: Mapping[str, float] = field(default_factory=dict)
    modules: Mapping[str, float] = field(default_factory=dict)
    workers: int = 0
    loading: str = ''
    straggler: Optional[int] = None
    behind: float = 0.0
    gpu_busy: Optional[int] = None


class Word(str, Enum):
    """One of some words, which prints as it is written in a file."""

    def __str__(self) -> str:
        return str(self.value)


class Outcome(Word):
    """The outcome of an optimizer step."""

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
    # Finite, but far above all steps before.
    SPIKE = 'spike'
    # The same, but the repeated step was fine: a fault of the machine.
    TRANSIENT = 'transient'
    # Losses far above those at the start of the run.
    DIVERGED = 'diverged'
    # The run learns nothing any more: gradients are gone.
    DEAD = 'dead'
    # The device had no memory left.
    OOM = 'oom'
    # The training step has raised an error, which ends the run.
    CRASH = 'crash'


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
class StepReport(Event, event='step_fault'):
    """Everything that happened to one optimizer step.

    In an event file there are only steps with a fault.

    Args:
        outcome (Outcome): Whether it was applied.
        fault (Fault, optional): What was wrong: with the whole step if it
            was skipped; with some of its micro-batches, or with its loss
            while all gradients were finite, if it was applied. Defaults to
            None.
        wrapper (str): Name of the optimizer wrapper; '' without a
            subscriber to its steps. Defaults to ''.
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
            rank, averaged over the window; None if it was not finite.
            Defaults to None.
        culprits (tuple[Culprit]): The parameters whose gradients were not
            finite. Defaults to ().
        scale_can_fall (bool): Whether a lower loss scale can still fix the
            fault. Defaults to False.
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
            one process, or if they are unknown. Defaults to ().
        copied_from (int, optional): The rank whose weights and optimizer
            state have replaced those of the origins, which had missed the
            update before this one. Defaults to None.
    """

    outcome: Outcome
    fault: Optional[Fault] = None
    wrapper: str = ''
    rank: int = 0
    loss_scale: float = 1.0
    next_loss_scale: float = 1.0
    grad_norm: Optional[float] = None
    clip_coef: Optional[float] = None
    clips: tuple[ClipRecord, ...] = ()
    clipped_norm: Optional[float] = None
    loss: Optional[float] = None
    culprits: tuple[Culprit, ...] = ()
    scale_can_fall: bool = False
    micro_batches: int = 1
    dropped_micro_batches: int = 0
    losses: Mapping[str, float] = field(default_factory=dict)
    loss_terms: tuple[str, ...] = ()
    origins: tuple[Origin, ...] = ()
    copied_from: Optional[int] = None

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
        if self.applied and not self.culprits:
            # None of it if only the loss was not finite.
            return self.dropped_micro_batches / self.micro_batches
        return 1.0


class Verdict(Word):
    """What a fault can come from."""

    FP16_OVERFLOW = 'fp16_overflow'
    BAD_INPUT = 'bad_input'
    BAD_WEIGHTS = 'bad_weights'
    # An operation that is not defined for what it was given, as log(0).
    DOMAIN_ERROR = 'domain_error'
    EXPLODING = 'exploding'
    # An epsilon, or another small number, that is 0 in float16.
    FP16_UNDERFLOW = 'fp16_underflow'
    # A label, an index or a probability that an operation does not accept.
    OUT_OF_RANGE = 'out_of_range'
    # The same batch raises the same error again.
    RAISED = 'raised'
    # The same batch with the same state is fine: hardware, or chance.
    NOT_REPRODUCED = 'not_reproduced'
    # It was not examined, for the given reason.
    NOT_EXAMINED = 'not_examined'


@dataclass(frozen=True)
class FaultExplained(Event, event='fault_explained'):
    """What FaultForensicsHook has found out about a bad step.

    Args:
        fault (Fault): The fault.
        verdict (Verdict): What it comes from.
        text (str): The same in words, in the language of the run.
        rank (int): The process that it happened to. Defaults to 0.
        wrapper (str): Name of the optimizer wrapper. Defaults to ''.
        kind (str): 'NaN' or 'Inf', whichever came first. Defaults to ''.
        phase (str): 'forward' or 'backward'. Defaults to ''.
        op (str): The operation that gave the first one, as 'aten.div.Tensor'.
            Defaults to ''.
        node (str): In the backward pass, the autograd node. Defaults to ''.
        module (str): The innermost module, '' for the model itself. Defaults
            to ''.
        lines (tuple[str]): File, line and code; two if the first is in a
            library. Defaults to ().
        source (str): What was bad before the step, if it was: 'parameter',
            'buffer', 'batch' or 'outside'. Defaults to ''.
        name (str): The name of that. Defaults to ''.
        inputs (tuple[str]): Ranges of the operation's inputs. Defaults to ().
        output (str): Range of its output. Defaults to ''.
        bad_share (float): The share of that which is not finite. Defaults to
            0.0.
        loss_terms (tuple[str]): The terms of the loss that it reached.
            Defaults to ().
        samples (tuple[int]): Indices of the samples in the batch. Defaults
            to ().
        sample_names (tuple[str]): What these are called. Defaults to ().
        only_together (bool): Whether it takes other samples besides these.
            Defaults to False.
        largest (float, optional): The value that was too large. Defaults to
            None.
        since (int, optional): Since which iteration weights are bad. Defaults
            to None.
        chain (tuple[str]): All origins on the way to the loss or gradient, the
            earliest first. Defaults to ().
        notes (tuple[str]): What limits this finding. Defaults to ().
        bundle (str, optional): The folder to replay it from. Defaults to
            None.
        seconds (float): How long it took. Defaults to 0.0.
    """

    fault: Fault
    verdict: Verdict
    text: str
    rank: int = 0
    wrapper: str = ''
    kind: str = ''
    phase: str = ''
    op: str = ''
    node: str = ''
    module: str = ''
    lines: tuple[str, ...] = ()
    source: str = ''
    name: str = ''
    inputs: tuple[str, ...] = ()
    output: str = ''
    bad_share: float = 0.0
    loss_terms: tuple[str, ...] = ()
    samples: tuple[int, ...] = ()
    sample_names: tuple[str, ...] = ()
    only_together: bool = False
    largest: Optional[float] = None
    since: Optional[int] = None
    chain: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    bundle: Optional[str] = None
    seconds: float = 0.0


@dataclass(frozen=True)
class LowHeadroom(Event, event='low_headroom'):
    """Values that come close to an end of the range of their type.

    Args:
        problem (str): 'overflow', or 'underflow' of gradients.
        module (str): The module; of an underflow, the worst one.
        kind (str): 'output', 'gradient' of that, or 'input' if that is cast
            to the type.
        dtype (str): The type, as 'float16'.
        share (float): Of an overflow that is to come, the largest value as a
            share of the range; of an underflow, the share of gradients that
            became zero.
        doubling (float, optional): Iterations in which the largest value
            doubles, if it grows. Defaults to None.
        left (float, optional): Iterations until it overflows, if that goes
            on. Defaults to None.
        loss_scale (float, optional): The loss scale of the iteration.
            Defaults to None.
    """

    problem: str
    module: str
    kind: str
    dtype: str
    share: float
    doubling: Optional[float] = None
    left: Optional[float] = None
    loss_scale: Optional[float] = None


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
    dtype: Optional[str]
    clip_grad: Optional[Mapping[str, Any]]
    clip: Optional[str]
    loss_scale: Optional[float]
    scale_policy: Optional[Mapping[str, Any]]


@dataclass(frozen=True)
class RunStart(Event, event='run_start'):
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
            namespace of processes; '' if the system does not say, None in
            files of an older mmstable. Defaults to None.
        born (str, optional): When the process began, by the kernel's count,
            likewise. Defaults to None.
        resume_command (str): The command line that started the run, without
            where it started from, if ``mmstable train`` did. Defaults to ''.
        supervisor (int): The process that restarts this one; 0 if none
            does. Defaults to 0.
        warnings (tuple[str]): Problems of the config that ``mmstable train``
            warned of. Defaults to ().
        changes (tuple[str]): What ``mmstable train`` changed to protect the
            run. Defaults to ().
    """

    schema: int
    rank: int
    world_size: int
    host: str
    pid: int
    versions: Mapping[str, str]
    device: str
    device_name: Optional[str]
    seed: Optional[int]
    max_iterations: int
    config_sha256: str
    wrappers: Mapping[str, WrapperSetup]
    custom_hooks: tuple[Any, ...]
    restarts: int = 0
    restarted_after: str = ''
    space: Optional[str] = None
    born: Optional[str] = None
    resume_command: str = ''
    supervisor: int = 0
    warnings: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Poisoned(Event, event='poisoned'):
    """A state of the run that was not saved because it is not finite.

    Args:
        culprits (tuple[Culprit]): The entries of the checkpoint that hold
            NaN or Inf.
    """

    culprits: tuple[Culprit, ...]


@dataclass(frozen=True)
class ReplicasDiverged(Event, event='replicas_diverged'):
    """Ranks that should hold the same state, but do not.

    Args:
        name (str): The first parameter, buffer or optimizer state that
            differs.
        count (int): How many differ.
        ranks (tuple[int]): The ranks that are not like the others.
        action (str): What was done: 'warn', 'repair' or 'stop'.
    """

    name: str
    count: int
    ranks: tuple[int, ...]
    action: str


class Action(Word):
    """What can be done about a fault, from the mildest to the last."""

    WARN = 'warn'
    # Repeat the step, and skip it only if it is not the same again.
    ASK = 'ask'
    SKIP = 'skip'
    LOWER_LR = 'lower_lr'
    ROLLBACK = 'rollback'
    STOP = 'stop'


class HeldVerdict(Word):
    """What became of a step that was held before its update."""

    # The same again: it belongs to the data or the model, and was applied.
    REPRODUCIBLE = 'reproducible'
    # Not the same again: a fault of the machine, and it was skipped.
    TRANSIENT = 'transient'
    # It could not be repeated, and was applied.
    NOT_ASKED = 'not_asked'


@dataclass(frozen=True)
class HeldStep(Event, event='held_step'):
    """A step far above all before, which was held and repeated.

    Args:
        verdict (HeldVerdict): What became of it.
        quantity (str): What was too high: 'loss' or 'grad_norm'.
        value (float): The number.
        peak (float): The largest one before, faded.
        wrapper (str): Name of the optimizer wrapper. Defaults to ''.
        rank (int): The process that reports it. Defaults to 0.
        again (float, optional): The same number of the repeated step.
            Defaults to None.
        samples (tuple[str]): The samples that it comes from; none if it is
            not about single ones. Defaults to ().
        reason (str): Why it could not be repeated. Defaults to ''.
    """

    verdict: HeldVerdict
    quantity: str
    value: float
    peak: float
    wrapper: str = ''
    rank: int = 0
    again: Optional[float] = None
    samples: tuple[str, ...] = ()
    reason: str = ''


@dataclass(frozen=True)
class Intervention(Event, event='intervention'):
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

    action: Action
    fault: Fault
    reason: str
    since: int
    subject: str = ''
    culprits: tuple[Culprit, ...] = ()
    restored: Optional[int] = None
    source: Optional[str] = None
    lr_factor: float = 1.0


@dataclass(frozen=True)
class Injection(Event, event='injected_fault'):
    """A fault that FaultInjectorHook has put into a run.

    Args:
        rank (int): The process that it happened to.
        kind (str): As in the config.
        target (str): The parameter, buffer, loss or input that was hit; for
            the other kinds, the place: 'forward' or 'data'.
        value (str): What was put there: 'NaN', 'Inf', a factor, seconds, or
            the name of a signal or error.
    """

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
class ScaleChange(Event, event='scale_change'):
    """A loss scale that moved, for any reason.

    Args:
        wrapper (str): Name of the optimizer wrapper.
        loss_scale (float): Scale until now.
        next_loss_scale (float): Scale from the next step on.
    """

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

    lr: Optional[float]
    grad_norm: Optional[float]
    loss_scale: Optional[float]
    clipped_norm: Optional[float] = None
    module_norms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Heartbeat(Event, event='heartbeat'):
    """A sample of a run, taken in regular intervals.

    Args:
        losses (Mapping): Losses of this iteration, by name.
        wrappers (Mapping): Samples of the optimizer wrappers, by name.
        iteration_time (float, optional): Mean seconds for an iteration since
            the last heartbeat, data loading included, validation not.
        host_memory (int, optional): Resident bytes of this process.
        device_memory (int, optional): Allocated bytes on the device; None on
            a CPU.
        device_memory_peak (int, optional): The most that ever was allocated.
    """

    losses: Mapping[str, float]
    wrappers: Mapping[str, WrapperSample]
    iteration_time: Optional[float]
    host_memory: Optional[int]
    device_memory: Optional[int]
    device_memory_peak: Optional[int]


@dataclass(frozen=True)
class WrapperTotals:
    """Counts of the steps of one wrapper, since the header.

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
class RunEnd(Event, event='run_end'):
    """The last line of a run that left its training loop.

    Args:
        reason (str): 'finished'; 'stopped' before the last iteration; or
            'exception'.
        wrappers (Mapping): Totals by wrapper.
        lost_events (int): Records that could not be written.
        traceback (str, optional): Of the exception. Defaults to None.
    """

    reason: str
    wrappers: Mapping[str, WrapperTotals]
    lost_events: int
    traceback: Optional[str] = None


@dataclass(frozen=True)
class UnknownEvent(Event):
    """A record that only a newer mmstable understands.

    Args:
        name (str): Its ``event``.
        data (Mapping): The whole JSON object.
    """

    name: str
    data: Mapping[str, Any]
