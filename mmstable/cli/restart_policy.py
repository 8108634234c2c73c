"""Is it worth while to start a run again?"""

from __future__ import annotations

import signal

from mmstable.errors import (
    CheckFailed,
    CheckpointError,
    ConfigError,
    TrainingDiverged,
    TrainingHangs,
    TrainingOutOfMemory,
    UsageError,
    WorkDirInUse,
)
from mmstable.messages import _

# What would be the same next time, or has to be decided by a person.
_FINAL = {
    one.exit_code
    for one in (
        UsageError,
        ConfigError,
        CheckFailed,
        CheckpointError,
        TrainingDiverged,
        TrainingOutOfMemory,
        WorkDirInUse,
    )
}
# Somebody wanted it to stop.
_STOPS = [
    getattr(signal, name)
    for name in ('SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR1', 'SIGQUIT')
    if hasattr(signal, name)
]
# Seconds before a restart, doubled for each one without a new checkpoint.
_SHORTEST, _LONGEST = 1.0, 60.0
# Restarts in a row that may bring no new checkpoint.
_MOST_IDLE = 2


def was_stopped(code: int) -> bool:
    """Whether a run has ended because somebody wanted that."""
    return code in {-one for one in _STOPS} | {128 + one for one in _STOPS}


def is_final(code: int) -> bool:
    """Whether a run would end in the same way if it was started again.

    Args:
        code (int): What ``subprocess`` calls ``returncode``.
    """
    return code == 0 or code in _FINAL or was_stopped(code)


def shell_code(code: int) -> int:
    """An exit code as a shell has it."""
    return 128 - code if code < 0 else code


def describe_end(code: int, is_stuck: bool = False) -> str:
    """Why a run has ended, in words.

    Args:
        code (int): What ``subprocess`` calls ``returncode``.
        is_stuck (bool): Whether it was killed because it showed no sign of
            life. Defaults to False.
    """
    if is_stuck:
        return _(
            "no sign of life, a call in C holds Python's lock; it was killed"
        )
    if code == -signal.SIGKILL:
        return _('killed by SIGKILL (out of memory? see `dmesg`)')
    if code < 0:
        return _('killed by {signal}', signal=_name(-code))
    if code == TrainingHangs.exit_code:
        return _('it hung (exit code {code})', code=code)
    return _('exit code {code}', code=code)


class RestartPolicy:
    """How often, and how soon, a run is started again.

    Args:
        most (int): Restarts in all.
        iteration (int, optional): Of the newest checkpoint at the start.
    """

    def __init__(self, most: int, iteration: int | None) -> None:
        self.most, self.done = most, 0
        self._iteration = iteration
        self._idle = 0

    def why_not(self, iteration: int | None) -> str | None:
        """Why a run that has ended is not started again, if it is not.

        Args:
            iteration (int, optional): Of the newest checkpoint now.
        """
        if iteration != self._iteration:
            self._iteration, self._idle = iteration, 0
        elif self.done:
            self._idle += 1
        if self._idle >= _MOST_IDLE:
            return _(
                'The last {count} restarts brought no new checkpoint, so it '
                'is not started again.',
                count=self._idle,
            )
        if self.done >= self.most:
            return _('All restarts ({most}) are used up.', most=self.most)
        return None

    def take(self) -> float:
        """Take a restart; the seconds to wait before it."""
        self.done += 1
        return min(_LONGEST, _SHORTEST * 2**self._idle)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
