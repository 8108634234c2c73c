"""What can go wrong, and the exit code that says so.

Everything mmstable raises on purpose while a run is prepared or trained
derives from :class:`MMStableError`. Bad arguments of a class are a plain
``ValueError`` or ``TypeError`` from its ``__init__``.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn


def add_note(error: BaseException, text: str, first: bool = False) -> None:
    """Have a text printed after the traceback of an error.

    Python does so from 3.11 on, and the command line before.

    Args:
        error (BaseException): The error.
        text (str): The text.
        first (bool): Whether to print it before all others; the command to
            resume is the last. Defaults to False.
    """
    notes = getattr(error, '__notes__', [])
    notes = [text, *notes] if first else [*notes, text]
    error.__notes__ = notes  # type: ignore[attr-defined]


class MMStableError(Exception):
    """Base of all errors of mmstable; ``exit_code`` is for the shell."""

    exit_code = 1


class UsageError(MMStableError):
    """The command line or the config asks for something impossible."""

    exit_code = 2


class ConfigError(MMStableError):
    """Settings that contradict each other, seen when the run is built."""

    exit_code = 2


class CheckFailed(MMStableError):
    """``mmstable train --check`` has found errors in the config."""

    exit_code = 9


class CheckpointError(MMStableError):
    """A checkpoint is missing, damaged or not to be trusted."""

    exit_code = 3


class WorkDirInUse(MMStableError):
    """Another run trains in the same folder."""

    exit_code = 5


class BundleError(MMStableError):
    """A bundle of a fault is missing, damaged or something else.

    Args:
        folder (str or Path): The bundle.
        reason (str): What is wrong with it.
    """

    exit_code = 3

    def __init__(self, folder: object, reason: str) -> None:
        self.reason = reason
        super().__init__(f"'{folder}' is no bundle of a fault: {reason}")


# Of `mmstable replay`, if the step of a bundle is fine now.
EXIT_NOT_REPRODUCED = 7


class ReplicasDivergedError(MMStableError):
    """Ranks that should hold the same weights do not."""

    exit_code = 20


class PeerFailedError(MMStableError):
    """Another rank has failed or is gone, so this one cannot go on."""

    exit_code = 21


class TrainingHangs(MMStableError):
    """A phase of training takes too long, and was told to end the run."""

    exit_code = 23


class DeviceLost(MMStableError):
    """A device fails in every call until its process ends."""

    exit_code = 24


# Errors of one call only, with which a device works on.
_PASSING = (
    'out of memory',
    'invalid argument',
    'invalid configuration argument',
    'invalid device ordinal',
    'no kernel image',
    'stream is capturing',
)
_LOST = ('CUDA error:', 'HIP error:', 'NPU error', 'XPU error')


def is_device_lost(error: BaseException) -> bool:
    """Whether an error is sticky: no later call of the device can succeed.

    Such are device-side asserts, illegal memory accesses, uncorrectable ECC
    errors and a GPU that has fallen off the bus.

    Args:
        error (BaseException): What a call of torch has raised.
    """
    text = str(error)
    is_named = type(error).__name__ == 'AcceleratorError'
    is_said = isinstance(error, RuntimeError) and any(
        words in text for words in _LOST
    )
    return (is_named or is_said) and not any(
        words in text for words in _PASSING
    )


class TrainingDiverged(MMStableError):
    """The run cannot be saved by going back once more.

    Args:
        text (str): What its owner has to know; it is in the log already.
        file (str): The diagnosis.
    """

    exit_code = 4

    def __init__(self, text: str, file: str) -> None:
        super().__init__(text)
        self.file = file


class TrainingOutOfMemory(MMStableError):
    """Batches do not fit in memory, whatever is tried."""

    exit_code = 10


class ResultNotSaved(MMStableError):
    """The run came to its end, but what it has learnt could not be saved."""

    exit_code = 12


class InjectedError(MMStableError, RuntimeError):
    """The exception that FaultInjectorHook was told to raise."""


class StoppedBySignal(MMStableError):
    """The run was asked to stop, and can be resumed.

    Args:
        name (str): The signal's name.
        number (int): The signal's number.
    """

    def __init__(self, name: str, number: int) -> None:
        super().__init__(f'stopped by {name}')
        self.name = name
        # As a shell reports a process that a signal has ended.
        self.exit_code = 128 + number


class RestartNeeded(StoppedBySignal):
    """The run is saved, and ended so that it can start with free memory."""

    def __init__(self) -> None:
        super().__init__('MemoryGuardHook', 0)
        self.exit_code = 22


class TimeLimitReached(StoppedBySignal):
    """The run is saved, and ended ahead of its time limit."""

    def __init__(self) -> None:
        super().__init__('the time limit', 0)
        self.exit_code = 25


# Names the scheduler whose exit codes are to be used.
EXIT_CODES = 'MMSTABLE_EXIT_CODES'
# Ends after which the run can be resumed, besides those by a signal.
_RESUMABLE = {
    ResultNotSaved.exit_code,
    ReplicasDivergedError.exit_code,
    PeerFailedError.exit_code,
    RestartNeeded().exit_code,
    TrainingHangs.exit_code,
    DeviceLost.exit_code,
    TimeLimitReached().exit_code,
}
# The exit code that a scheduler takes for "start it again".
SCHEDULERS = {'kubeflow': 138}


def exit_code_for(code: int) -> int:
    """Return an exit code as the scheduler wants it.

    Ends that can be resumed get the one code that it restarts. Final ones
    keep theirs, which is below 128.

    Args:
        code (int): The exit code of mmstable.
    """
    restart = SCHEDULERS.get(os.environ.get(EXIT_CODES, ''))
    is_resumable = code in _RESUMABLE or code > 128
    return code if restart is None or not is_resumable else restart


def exit_now(code: int) -> NoReturn:
    """End this process, whatever its other threads are doing.

    Args:
        code (int): The exit code of mmstable.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(exit_code_for(code))
