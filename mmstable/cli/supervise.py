"""Start the processes of a run, and start them again when they fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from mmstable import errors
from mmstable.checkpoint.catalog import Candidate, rank_candidates
from mmstable.checkpoint.folders import AnyPath
from mmstable.checkpoint.signals import SAVE, SIGNALS, ask_to_save
from mmstable.cli.command import tell
from mmstable.cli.start import without_start
from mmstable.events.log import RESTARTED_AFTER, RESTARTS
from mmstable.io.heartbeat import SUPERVISOR, read_failure, read_heartbeat
from mmstable.io.process import state_of
from mmstable.messages import N_, _
from mmstable.notify import send_from_supervisor

_INTERVAL = 0.2
# Seconds more than the run itself needs to report a hang.
_GRACE = 10.0
# Seconds that the other processes have to end after the first one, and after
# they were told to. Those that save have more.
_LEAVE, _TERMINATE = 90.0, 10.0
_SAVING = 'checkpoint'


@dataclass(frozen=True)
class End:
    """How a run has ended.

    Args:
        code (int): ``returncode`` of the process to blame; 0 if all went
            well.
        is_stuck (bool): Whether it was killed because it sent no heartbeat.
            Defaults to False.
        failure (dict, optional): The failure that the run itself has
            reported. Defaults to None.
    """

    code: int
    is_stuck: bool = False
    failure: Mapping[str, Any] | None = None

    @property
    def cause(self) -> tuple[str, int] | None:
        """What must not happen twice: an error in the same iteration."""
        found = self.failure
        if found is None or found['iteration'] < 0:
            return None
        return found['error'], found['iteration']

    def __str__(self) -> str:
        if self.failure is None:
            return describe_end(self.code, self.is_stuck)
        node = self.failure['node']
        return _(
            'rank {rank}{node} failed: {error}',
            rank=self.failure['rank'],
            node=_(' ({node})', node=node) if node else '',
            error=self.failure['error'],
        )


class Processes:
    """The processes of a run on this machine.

    One that sends no heartbeat any more is killed: a run reports by itself
    that it hangs, and ends, but cannot while a call in C holds the GIL. Time
    in which it is stopped, or in which this process does not run, does not
    count. When one has failed, the others are given time to save and end.

    Args:
        command (Sequence[str]): What to start.
        variables (Sequence[Mapping]): Environment variables of each process.
        folder (Path): For their heartbeats.
    """

    def __init__(
        self,
        command: Sequence[str],
        variables: Sequence[Mapping[str, str]],
        folder: Path,
    ) -> None:
        self._files = [folder / str(n) for n in range(len(variables))]
        self._ranks = [int(own.get('RANK', 0)) for own in variables]
        self.processes = [
            subprocess.Popen(
                command, env={**os.environ, **own, SUPERVISOR: str(file)}
            )
            for own, file in zip(variables, self._files)
        ]
        self._beats: dict[int, int] = {}
        self._silent = [0.0] * len(variables)
        self._stuck: set[int] = set()

    def wait(self) -> End:
        """Wait until all have ended."""
        last, first, ended_at = time.monotonic(), -1, 0.0
        while True:
            codes = [one.poll() for one in self.processes]
            now = time.monotonic()
            if first < 0 and any(codes):
                first = next(n for n, code in enumerate(codes) if code)
                ended_at = now
            if None not in codes:
                break
            for number, code in enumerate(codes):
                if code is None:
                    self._look(number, min(now - last, 2 * _INTERVAL))
                    if first >= 0:
                        self._hurry(number, now - ended_at)
            last = now
            with suppress(subprocess.TimeoutExpired):
                self.processes[codes.index(None)].wait(_INTERVAL)
        return End(0) if first < 0 else self._judge(first)

    def _judge(self, first: int) -> End:
        """Find the failure behind the first process that has failed."""
        found = next(filter(None, map(read_failure, self._files)), None)
        code = self.processes[first].returncode
        if found is None:
            return End(code, first in self._stuck)
        if found['rank'] in self._ranks:
            first = self._ranks.index(found['rank'])
            code = self.processes[first].returncode
        elif found['iteration'] >= 0:
            code = found['code']
        return End(code, first in self._stuck, found)

    def _look(self, number: int, spent: float) -> None:
        """Kill a process that has been silent for too long."""
        beat = read_heartbeat(self._files[number])
        process = self.processes[number]
        if beat is None:
            return
        written, limit, __ = beat
        if written != self._beats.get(number):
            self._beats[number], self._silent[number] = written, 0.0
        elif state_of(process.pid) not in ('stopped', 'traced'):
            self._silent[number] += spent
        if self._silent[number] > limit + _GRACE:
            self._stuck.add(number)
            process.kill()

    def _hurry(self, number: int, waited: float) -> None:
        """End a process that stays behind, unless it saves."""
        beat = read_heartbeat(self._files[number])
        if beat is not None and beat[2] == _SAVING:
            return
        if waited > _LEAVE + _TERMINATE:
            self.processes[number].kill()
        elif waited > _LEAVE:
            self.processes[number].terminate()

    def send(self, number: int) -> None:
        """Send a signal to all of them; those that have ended get none."""
        for process in self.processes:
            if number == SAVE and process.poll() is None:
                ask_to_save(process.pid)
            elif number != SAVE:
                with suppress(ProcessLookupError):
                    process.send_signal(number)


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
# Signals of a process that has gone wrong inside: 'core dumped'.
_CRASHES = ('SIGSEGV', 'SIGBUS', 'SIGABRT', 'SIGILL', 'SIGFPE')
# Ended on request.
_STOPS = [getattr(signal, name) for name in (*SIGNALS, 'SIGQUIT')]
# Seconds before a restart, doubled for each one without a new checkpoint.
_SHORTEST, _LONGEST_PAUSE_S = 1.0, 60.0
# Restarts in a row that may bring no new checkpoint.
_MOST_IDLE = 2


def was_stopped(code: int) -> bool:
    """Return whether a run has ended on request, or at its time limit."""
    if code == errors.TimeLimitReached().exit_code:
        return True
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
    """Describe how a process has ended.

    Args:
        code (int): What ``subprocess`` calls ``returncode``.
        is_stuck (bool): Whether it was killed because it sent no heartbeat.
            Defaults to False.
    """
    if is_stuck:
        return _('no heartbeat, a call in C holds the GIL; it was killed')
    if code == -signal.SIGKILL:
        return _('killed by SIGKILL (out of memory? see `dmesg`)')
    text = N_('exit code {code}')
    if code < 0:
        text = N_('killed by {signal}')
    elif code == errors.TrainingHangs.exit_code:
        text = N_('it hung (exit code {code})')
    elif code == errors.DeviceLost.exit_code:
        text = N_('the device was lost (exit code {code})')
    return _(text, code=code, signal=_name(-code))


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
        self._cause: tuple[str, int] | None = None

    def why_not(
        self, iteration: int | None, end: End | None = None
    ) -> str | None:
        """Return why a run that has ended is not started again, if so.

        Args:
            iteration (int, optional): Of the newest checkpoint now.
            end (End, optional): How it has ended. Defaults to None.
        """
        if end is not None and is_final(end.code):
            return _('To start it again would not help.')
        cause = None if end is None else end.cause
        if cause is not None and cause == self._cause:
            text = N_(
                'It has failed twice in the same way, after iteration '
                '{iteration}, so it is not started again.'
            )
            return _(text, iteration=cause[1])
        self._cause = cause
        if iteration != self._iteration:
            self._iteration, self._idle = iteration, 0
        elif self.done:
            self._idle += 1
        if self._idle >= _MOST_IDLE:
            text = N_(
                'The last {count} restarts brought no new checkpoint, so it '
                'is not started again.'
            )
            return _(text, count=self._idle)
        if not self.most:
            return _('--max-restarts N would start it again.')
        if self.done >= self.most:
            return _('All restarts ({most}) are used up.', most=self.most)
        return None

    def take(self) -> float:
        """Take a restart; return the seconds to wait before it."""
        self.done += 1
        return min(_LONGEST_PAUSE_S, _SHORTEST * 2**self._idle)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


OPTION = '--max-restarts'


class NotStarted(Exception):
    """A run is not started on this machine.

    Args:
        code (int): The exit code.
    """

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


class Supervisor:
    """Trains in other processes, and starts them again if they fail.

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
        self._running: Processes | None = None
        # Set when the run is to stop.
        self._stopped = threading.Event()
        self._stop_number: int | None = None

    def run(self, most: int) -> int:
        """Train until it is done, or in vain; return the exit code.

        Args:
            most (int): How often to start the run again.
        """
        first = self._first
        policy = RestartPolicy(
            most, None if first is None else first.iteration
        )
        end = End(0)
        with self._forwarding():
            while True:
                try:
                    variables = self._plan(policy.done)
                except NotStarted as stop:
                    return stop.code
                end = self._train(variables, end)
                code = shell_code(end.code)
                if was_stopped(code) or self._stopped.is_set() or not code:
                    return code
                if not self._decides:
                    tell('the run ended: {end}', end=str(end))
                    continue
                if _name(-end.code) in _CRASHES:
                    tell(
                        'it crashed ({signal}): a bug in native code, or a '
                        'sick machine; `mmstable doctor` tests this one',
                        signal=_name(-end.code),
                    )
                newest = self._newest()
                iteration = None if newest is None else newest.iteration
                why_not = policy.why_not(iteration, end)
                if why_not is not None:
                    text = N_('the run ended: {end}. {why}')
                    tell(text, end=str(end), why=why_not)
                    self._tell_others(policy.done + 1, why_not, code)
                    self._notify(f'{end}. {why_not}', not is_final(end.code))
                    return code
                seconds = policy.take()
                source = _('where it was started from')
                if newest is not None and _mark(newest) != _mark(self._first):
                    source = newest.path.name
                tell(
                    'the run ended: {end}. Restart {number} of {most} in '
                    '{seconds:.0f} s, from {source}',
                    end=str(end),
                    number=policy.done,
                    most=most,
                    seconds=seconds,
                    source=source,
                )
                self._notify(str(end), False)
                if self._stopped.wait(seconds):
                    return code

    # Whether this process decides about restarts.
    _decides = True

    def _plan(self, restarts: int) -> list[dict[str, str]]:
        """Return the variables of the processes to start here.

        Args:
            restarts (int): How often the run was started before.

        Raises:
            NotStarted: If it is not to be started.
        """
        return [{RESTARTS[0]: str(restarts)}]

    def _tell_others(self, restarts: int, why_not: str, code: int) -> None:
        """Tell other machines that the run is not started again."""

    def _train(self, variables: list[dict[str, str]], before: End) -> End:
        for own in variables:
            own[RESTARTED_AFTER] = str(before) if before.code else ''
            # This process maps the exit code, if that is wanted.
            own[errors.EXIT_CODES] = ''
        with tempfile.TemporaryDirectory() as folder:
            self._running = Processes(
                [*self._program, *self._arguments()], variables, Path(folder)
            )
            if self._stop_number is not None:
                # It came while the processes were being started.
                self._running.send(self._stop_number)
            return self._running.wait()

    def _arguments(self) -> list[str]:
        """Return those of the first start, or those to resume with."""
        if _mark(self._newest()) == _mark(self._first):
            return self._words
        return [*without_start(self._words), '--resume', 'auto']

    def _notify(self, text: str, is_over: bool) -> None:
        if self._folders:
            send_from_supervisor(str(self._folders[0]), text, is_over)

    def _newest(self) -> Candidate | None:
        if not self._folders:
            return None
        live = rank_candidates(self._folders).live
        return live[0] if live else None

    @contextmanager
    def _forwarding(self) -> Iterator[None]:
        """Give signals to the processes that train."""
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
        # A terminal sends Ctrl-C to all of its processes.
        is_sent = number == signal.SIGINT and sys.stdin.isatty()
        if self._running is not None and not is_sent:
            self._running.send(number)


def _mark(found: Candidate | None) -> Any:
    """What no other checkpoint has in common with this one."""
    if found is None:
        return None
    if not isinstance(found.path, Path):
        return found.path, found.iteration
    with suppress(OSError):
        return found.path, found.path.stat().st_mtime_ns
    return found.path
