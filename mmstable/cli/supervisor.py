"""``mmstable train --max-restarts N``: start a run again when it fails."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Callable

from mmstable.checkpoint.candidates import Candidate, rank_candidates
from mmstable.checkpoint.stop_signal import SAVE, SIGNALS, ask_to_save
from mmstable.cli.child import Child
from mmstable.cli.restart_policy import (
    RestartPolicy,
    describe_end,
    is_final,
    shell_code,
    was_stopped,
)
from mmstable.cli.resume_command import without_option, without_start
from mmstable.events.run_header import RESTARTED_AFTER, RESTARTS
from mmstable.liveness.sign_of_life import VARIABLE
from mmstable.messages import _

OPTION = '--max-restarts'


class Supervisor:
    """Trains in another process, and starts that again if it fails.

    Args:
        program (Sequence[str]): The program that trains.
        words (Sequence[str]): Its arguments.
        work_dir (str): Where it trains.
        folders (Sequence[Path]): Where its checkpoints are.
        say (Callable): Prints a line for the user.
    """

    def __init__(
        self,
        program: Sequence[str],
        words: Sequence[str],
        work_dir: str,
        folders: Sequence[Path],
        say: Callable[[str], None],
    ) -> None:
        self._program, self._words = list(program), _once(words, work_dir)
        self._folders, self._say = folders, say
        self._first = self._newest()
        self._child: Child | None = None
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
                    self._say(
                        _('the run ended: {end}. {why}', end=end, why=why_not)
                    )
                    return shell_code(code)
                seconds = policy.take()
                self._announce(end, policy, seconds)
                if self._stopped.wait(seconds):
                    return shell_code(code)

    def _train(self, life: Path, restarts: int, end: str) -> tuple[int, bool]:
        env = {**os.environ, VARIABLE: str(life), RESTARTS[0]: str(restarts)}
        env[RESTARTED_AFTER] = end
        child = Child([*self._program, *self._arguments()], env, life)
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
        self._say(
            _(
                'the run ended: {end}. Restart {number} of {most} in '
                '{seconds:.0f} s, from {source}',
                end=end,
                number=policy.done,
                most=policy.most,
                seconds=seconds,
                source=source,
            )
        )

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


def _once(words: Sequence[str], work_dir: str) -> list[str]:
    """The arguments of one start, always in the same folder."""
    kept = without_option(words, OPTION)
    if any(word.startswith('--work-dir') for word in kept):
        return kept
    return [*kept, '--work-dir', work_dir]


def _iteration(found: Candidate | None) -> int | None:
    return None if found is None else found.iteration


def _mark(found: Candidate | None) -> Any:
    """What no other checkpoint has in common with this one."""
    if found is None:
        return None
    with suppress(OSError):
        return found.path, found.path.stat().st_mtime_ns
    return found.path
