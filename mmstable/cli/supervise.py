"""``mmstable train --max-restarts N``: start a run again when it fails."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from mmstable import errors
from mmstable.checkpoint.catalog import Candidate, rank_candidates
from mmstable.checkpoint.remote import AnyPath
from mmstable.checkpoint.signals import SAVE, SIGNALS, ask_to_save
from mmstable.cli.command import tell
from mmstable.cli.start import without_start
from mmstable.events.log import RESTARTED_AFTER, RESTARTS
from mmstable.io.files import read_bounded
from mmstable.io.lock import HEARTBEAT_FILE
from mmstable.io.process import state_of
from mmstable.messages import _
from mmstable.notify import send_from_supervisor

_INTERVAL = 0.2
# Seconds more than the run itself needs to tell of a hang.
_GRACE = 10.0
_LONGEST = 1000


class SupervisedProcess:
    """A process that is killed if it gives no sign of life any more.

    A run tells by itself that it hangs, and ends. It cannot if a call in C
    holds Python's lock. Time in which it is stopped, or in which this
    process does not run, does not count.

    Args:
        command (Sequence[str]): What to start.
        env (Mapping): Its variables.
        life (Path): What it writes to while it is alive: first of all the
            seconds that it may take until the next time.
    """

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], life: Path
    ) -> None:
        self._life = life
        life.unlink(missing_ok=True)
        self.process = subprocess.Popen(command, env=dict(env))
        self.is_stuck = False
        self._touched: int | None = None
        self._silent = 0.0

    def wait(self) -> int:
        """Wait until it ends; its ``returncode``."""
        last = time.monotonic()
        while True:
            try:
                return self.process.wait(_INTERVAL)
            except subprocess.TimeoutExpired:
                now = time.monotonic()
                self._look(min(now - last, 2 * _INTERVAL))
                last = now

    def _look(self, spent: float) -> None:
        try:
            touched = self._life.stat().st_mtime_ns
            word = read_bounded(self._life, _LONGEST).split(None, 1)
            limit = float(word[0]) + _GRACE
        except (OSError, ValueError, IndexError):
            # It has not begun, or is about to write.
            return
        if touched != self._touched:
            self._touched, self._silent = touched, 0.0
        elif state_of(self.process.pid) not in ('stopped', 'traced'):
            self._silent += spent
        if self._silent > limit and not self.is_stuck:
            self.is_stuck = True
            self.process.kill()


# What would be the same next time, or has to be decided by a person.
_FINAL = {
    one.exit_code
    for one in (
        errors.UsageError,
        errors.ConfigError,
        errors.CheckFailed,
        errors.CheckpointError,
        errors.TrainingDiverged,
        errors.TrainingOutOfMemory,
        errors.WorkDirInUse,
    )
}
# Somebody wanted it to stop.
_STOPS = [
    getattr(signal, name)
    for name in ('SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR1', 'SIGQUIT')
    if hasattr(signal, name)
]
# Seconds before a restart, doubled for each one without a new checkpoint.
_SHORTEST, _LONGEST_PAUSE_S = 1.0, 60.0
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
    if code == errors.TrainingHangs.exit_code:
        return _('it hung (exit code {code})', code=code)
    if code == errors.DeviceLost.exit_code:
        return _('the device was lost (exit code {code})', code=code)
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
        return min(_LONGEST_PAUSE_S, _SHORTEST * 2**self._idle)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


OPTION = '--max-restarts'


class Supervisor:
    """Trains in another process, and starts that again if it fails.

    Args:
        program (Sequence[str]): The program that trains.
        words (Sequence[str]): Its arguments, the work dir among them.
        folders (Sequence[Path]): Where its checkpoints are.
    """

    def __init__(
        self,
        program: Sequence[str],
        words: Sequence[str],
        folders: Sequence[AnyPath],
    ) -> None:
        self._program, self._words = list(program), list(words)
        self._folders = folders
        self._first = self._newest()
        self._child: SupervisedProcess | None = None
        # Set when somebody wants the run to stop.
        self._stopped = threading.Event()
        self._stop_number: int | None = None

    def run(self, most: int) -> int:
        """Train until it is done, or in vain; the exit code.

        Args:
            most (int): How often to start the run again.
        """
        policy = RestartPolicy(most, _iteration(self._first))
        end = ''
        with self._forwarding(), tempfile.TemporaryDirectory() as folder:
            life = Path(folder, 'sign_of_life')
            while True:
                code, stuck = self._train(life, policy.done, end)
                if code == 0 or was_stopped(code) or self._stopped.is_set():
                    return shell_code(code)
                end = describe_end(code, stuck)
                why_not = policy.why_not(_iteration(self._newest()))
                if is_final(code):
                    why_not = _('To start it again would not help.')
                if why_not is not None:
                    tell('the run ended: {end}. {why}', end=end, why=why_not)
                    self._notify(f'{end}. {why_not}', not is_final(code))
                    return shell_code(code)
                seconds = policy.take()
                self._announce(end, policy, seconds)
                self._notify(end, False)
                if self._stopped.wait(seconds):
                    return shell_code(code)

    def _train(self, life: Path, restarts: int, end: str) -> tuple[int, bool]:
        env = {
            **os.environ,
            HEARTBEAT_FILE: str(life),
            RESTARTS[0]: str(restarts),
        }
        env[RESTARTED_AFTER] = end
        child = SupervisedProcess(
            [*self._program, *self._arguments()], env, life
        )
        self._child = child
        if self._stop_number is not None:
            # It came while the process was being started.
            child.process.send_signal(self._stop_number)
        return child.wait(), child.is_stuck

    def _arguments(self) -> list[str]:
        """As it was started, or from what it has saved since."""
        if _mark(self._newest()) == _mark(self._first):
            return self._words
        return [*without_start(self._words), '--resume', 'auto']

    def _announce(
        self, end: str, policy: RestartPolicy, seconds: float
    ) -> None:
        newest = self._newest()
        source = _('where it was started from')
        if newest is not None and _mark(newest) != _mark(self._first):
            source = newest.path.name
        tell(
            'the run ended: {end}. Restart {number} of {most} in '
            '{seconds:.0f} s, from {source}',
            end=end,
            number=policy.done,
            most=policy.most,
            seconds=seconds,
            source=source,
        )

    def _notify(self, text: str, is_over: bool) -> None:
        send_from_supervisor(str(self._folders[0]), text, is_over)

    def _newest(self) -> Candidate | None:
        live = rank_candidates(self._folders).live
        return live[0] if live else None

    @contextmanager
    def _forwarding(self) -> Iterator[None]:
        """Give signals to the process that trains."""
        before = {
            number: signal.signal(number, self._forward)
            for number in (getattr(signal, name) for name in SIGNALS)
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if number != SAVE:
            self._stop_number = number
            self._stopped.set()
        if self._child is None:
            return
        process = self._child.process
        # Without effect if it has ended.
        if number != SAVE:
            with suppress(ProcessLookupError):
                process.send_signal(number)
        elif process.poll() is None:
            ask_to_save(process.pid)


def _iteration(found: Candidate | None) -> int | None:
    return None if found is None else found.iteration


def _mark(found: Candidate | None) -> Any:
    """What no other checkpoint has in common with this one."""
    if found is None:
        return None
    if not isinstance(found.path, Path):
        return found.path, found.iteration
    with suppress(OSError):
        return found.path, found.path.stat().st_mtime_ns
    return found.path
