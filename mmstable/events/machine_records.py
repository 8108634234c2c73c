"""What a machine does to a run: full disks and memory, hangs, slowness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from mmstable.events.event import Event


@dataclass(frozen=True)
class MemoryAlarm(Event):
    """A resource of the machine that runs out.

    Args:
        resource (str): 'host' for memory in bytes, 'shared_memory' for
            /dev/shm in bytes, 'descriptors' for open files of one process.
        holder (str): Whose use grows most: 'main_process', 'workers' or ''.
        used (int): What is used.
        limit (int): What may be used.
        left (int): What is left.
        source (str): Who sets the limit: 'machine', 'cgroup' or 'setting'.
        action (str): What is done: 'warn', 'save', 'lower_workers' or
            'restart'.
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

    event: ClassVar[str] = 'memory_alarm'

    resource: str
    holder: str
    used: int
    limit: int
    left: int
    source: str
    action: str
    rank: int = 0
    growth: float = 0.0
    iterations_left: float | None = None
    seconds_left: float | None = None
    workers_share: float = 0.0
    workers: int = 0
    prefetch: int = 0


@dataclass(frozen=True)
class OutOfMemory(Event):
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
        report (str, optional): The file that tells all of it. Defaults to
            None.
    """

    event: ClassVar[str] = 'out_of_memory'

    phase: str
    rung: str
    rank: int = 0
    gradients: str = ''
    reason: str = ''
    shapes: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    device: str = ''
    requested: int | None = None
    allocated: int | None = None
    reserved: int | None = None
    peak: int | None = None
    report: str | None = None


@dataclass(frozen=True)
class CheckpointFailed(Event):
    """A checkpoint that could not be written; training continues.

    Args:
        name (str): Its file.
        reason (str): What the disk, or the network, says.
    """

    event: ClassVar[str] = 'checkpoint_failed'

    name: str
    reason: str


@dataclass(frozen=True)
class Hang(Event):
    """A phase of training that takes too long.

    Args:
        rank (int): The process that tells.
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

    event: ClassVar[str] = 'hang'

    rank: int
    phase: str
    part: str
    seconds: float
    limit: float
    line: str
    behind: int | None
    action: str
    text: str
    file: str


@dataclass(frozen=True)
class IterationProfile(Event):
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

    event: ClassVar[str] = 'iteration_profile'

    iterations: int
    seconds: float
    causes: tuple[str, ...]
    text: str
    phases: Mapping[str, float]
    hooks: Mapping[str, float] = field(default_factory=dict)
    modules: Mapping[str, float] = field(default_factory=dict)
    workers: int = 0
    loading: str = ''
    straggler: int | None = None
    behind: float = 0.0
    gpu_busy: int | None = None
