"""Signals to a run, noted when they come and obeyed when it is safe.

The command that resumes a run from one of its checkpoints.
"""

from __future__ import annotations

import atexit
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from mmstable.messages import N_, _
from mmstable.messages.secrets import shell_command, shell_word

if TYPE_CHECKING:
    # A command imports this before anything that takes seconds.
    from mmengine.runner import Runner

# What a run can listen to. SIGUSR1 asks to save and go on, all others ask to
# save and stop. submitit and SGE send SIGUSR2, SGE sends SIGXCPU at a limit.
SIGNALS = (
    'SIGTERM',
    'SIGINT',
    'SIGHUP',
    'SIGUSR1',
    'SIGUSR2',
    'SIGXCPU',
)


class Request(IntEnum):
    """What a run can be asked for, by a signal or by a part of its own."""

    SIGTERM = signal.SIGTERM
    SIGINT = signal.SIGINT
    SIGHUP = signal.SIGHUP
    SIGUSR1 = signal.SIGUSR1
    SIGUSR2 = signal.SIGUSR2
    SIGXCPU = signal.SIGXCPU
    # Save and start again with free memory.
    RESTART = 101
    # Save and stop: the time limit is near.
    DEADLINE = 102


SAVE = Request.SIGUSR1
# Seconds in which a signal that comes again is still the same one: Slurm,
# systemd and terminals send it to torchrun and to its ranks, and torchrun
# sends it to the ranks once more.
REPEATS = 1.0
# The one whose handlers are in place.
_installed: StopSignal | None = None


def wait_for_training() -> None:
    """Ignore a request to save, until there is something to be saved.

    It would end the process by default. Not by ``SIG_IGN``: a run leaves
    alone what was ignored before it.
    """
    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(SAVE) is signal.SIG_DFL
    ):
        signal.signal(SAVE, lambda number, frame: None)


def ask_to_save(pid: int) -> None:
    """Pass a request to save on to a process that trains.

    One that has just been started does not listen yet, and would end.
    """
    with suppress(ProcessLookupError):
        if catches(pid, SAVE) is not False:
            os.kill(pid, SAVE)


def catches(pid: int, number: int) -> bool | None:
    """Whether a process has a handler for a signal, which may end it if not.

    Args:
        pid (int): The process; one that has ended has none.
        number (int): The signal.

    Returns:
        bool or None: The same, or None if this machine does not tell.
    """
    try:
        text = Path(f'/proc/{pid}/status').read_text(errors='replace')
    except OSError:
        return False if Path('/proc/self/status').exists() else None
    mask = re.search(r'^SigCgt:\s*([0-9a-f]+)$', text, re.M)
    return None if mask is None else bool(int(mask[1], 16) >> number - 1 & 1)


class StopSignal:
    """Remembers what this process was asked for.

    The handler only sets :attr:`pending`: saving from inside a handler could
    meet a half-made update. Further signals change nothing, so that they
    cannot cut a save short: LSF sends SIGINT, SIGTERM and SIGKILL, 10 seconds
    apart. Only Ctrl-C on a terminal, pressed twice, ends the process at once.
    What is ignored when training starts, as SIGHUP below ``nohup``, stays
    ignored.

    Forked processes inherit the handler; there Ctrl-C, which a terminal
    sends to the whole group, is left to the main process, and other signals
    do what they do by default.

    Args:
        names (Sequence[str]): The signals, of :data:`SIGNALS`.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._numbers = [signal.Signals[name] for name in names]
        self._previous: dict[int, Any] = {}
        self._pid = 0
        self._stopped_at: float | None = None
        self._is_over = False
        self.pending: Request | None = None

    def install(self) -> bool:
        """Start to listen; False outside the main thread, which cannot."""
        global _installed  # noqa: PLW0603
        if threading.current_thread() is not threading.main_thread():
            return False
        if _installed is not None:
            # Of a run that has ended, perhaps by an error on its way.
            _installed._restore()
        _installed = self
        self._pid = os.getpid()
        self.pending = self._stopped_at = None
        self._is_over = False
        for number in self._numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)
        return True

    def uninstall(self) -> None:
        """Put the previous handlers back.

        If a signal to stop has just come, its repeats are ignored first,
        until it cannot be the same any more or the process has ended.
        """
        if not self._previous or self._is_over:
            return
        if self._stopped_at is None:
            self._restore()
            return
        self._is_over = True
        atexit.register(self._ignore)

    def request(self, request: Request) -> None:
        """Act as if a signal had come; from the training thread only."""
        if self._stopped_at is None:
            self.pending = request
            if request is not SAVE:
                self._stopped_at = time.monotonic()

    def saved(self) -> None:
        """What was asked for is done, unless that was to stop."""
        if self.pending is SAVE:
            self.pending = None

    def _restore(self) -> None:
        global _installed  # noqa: PLW0603
        for number, previous in self._previous.items():
            if signal.getsignal(number) != self._handle:
                # Somebody else has taken it since.
                continue
            # None: a handler that was not installed from Python.
            signal.signal(
                number, signal.SIG_DFL if previous is None else previous
            )
        self._previous = {}
        if _installed is self:
            _installed = None
        atexit.unregister(self._ignore)

    def _ignore(self) -> None:
        # Python's handlers end before the process does.
        for number in self._previous:
            signal.signal(number, signal.SIG_IGN)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            if number != signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        if self._stopped_at is not None:
            waited = time.monotonic() - self._stopped_at
            if waited > REPEATS:
                self._insist(number)
            return
        self.request(Request(number))
        previous = self._previous.get(number)
        # Python's own handler of Ctrl-C would raise in the middle of a step.
        if callable(previous) and previous is not signal.default_int_handler:
            previous(number, frame)

    def _insist(self, number: int) -> None:
        """Obey another signal after the one that stops the run."""
        if self._is_over:
            self._restore()
            os.kill(os.getpid(), number)
        elif number == self.pending == Request.SIGINT and sys.stdin.isatty():
            # Not by a scheduler, which has no terminal.
            os._exit(128 + number)


RESUME_FROM_NEWEST = N_(
    'Resume from the newest checkpoint with --resume auto.'
)


def resume_command_for(runner: Runner, path: str) -> str:
    """The command line that started this run, with a place to start from."""
    # As `mmstable train` has noted it, if it was that.
    command = runner.cfg.get('resume_command')
    if not isinstance(command, str) or not command.isprintable():
        config = runner.cfg.filename or 'CONFIG'
        command = shell_command(
            ['mmstable', 'train', config, '--work-dir', runner.work_dir]
        )
    return f'{command} --resume-from {shell_word(path)}'


def resume_hint(runner: Runner, path: str | None) -> str:
    """A sentence for the owner of the run, empty without a checkpoint."""
    if path is None:
        return ''
    return _(
        'Resume with: {command}', command=resume_command_for(runner, path)
    )
