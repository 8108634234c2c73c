"""A thread that watches the training thread, and reports when it hangs.

Once a second it reads the calls of the training thread, which show the phase
of the run. The limits of phases are learned from the run. A healthy run
records nothing.
"""

from __future__ import annotations

import math
import os
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import dropwhile, takewhile
from types import FrameType
from typing import Any, NamedTuple

from mmstable.forensics.frames import Line, is_shown
from mmstable.hang.dead_man_switch import DeadManSwitch
from mmstable.io.process import BackgroundThread

_DUMPED = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
# The function in which mmengine calls a hook, and its local variable.
_CALLER, _HOOK = 'call_hook', 'hook'


class Call(NamedTuple):
    """A running function.

    Args:
        file (str): Its file.
        line (int): The line it has reached.
        function (str): Its name.
        hook (str): Class of the hook that mmengine calls there. Defaults to
            ''.
    """

    file: str
    line: int
    function: str
    hook: str = ''

    def __str__(self) -> str:
        return str(Line(self.file, self.line))


def calls_of(frame: FrameType | None) -> list[Call]:
    """List the calls that have led to a frame, the outermost first."""
    calls = []
    while frame is not None:
        code, hook = frame.f_code, ''
        if code.co_name == _CALLER:
            # `f_locals` of no other frame: it keeps large variables alive
            # for as long as the function runs.
            hook = type(frame.f_locals.get(_HOOK)).__name__
        line = frame.f_lineno or 0
        calls.append(Call(code.co_filename, line, code.co_name, hook))
        frame = frame.f_back
    return calls[::-1]


def read_dump(text: str) -> list[Call]:
    """List the first thread's calls in a dump by ``faulthandler``.

    Returns:
        list[Call]: The outermost first.
    """
    found = map(_DUMPED.match, text.splitlines())
    first = takewhile(bool, dropwhile(lambda one: one is None, found))
    calls = [Call(one[1], int(one[2]), one[3]) for one in first if one]
    return calls[::-1]


def blamed_line(calls: Sequence[Call]) -> str:
    """Name the innermost line outside torch and the standard library.

    Returns:
        str: File and line; '' if there is none.
    """
    shown = (str(call) for call in reversed(calls) if is_shown(call.file))
    return next(shown, '')


# Phases of every iteration.
BUSY = ('data', 'forward', 'backward', 'step')
# Phases that come now and then, and may take long.
RARE = ('hook', 'validation', 'checkpoint', 'resume', 'compile', 'other')
PHASES = (*BUSY, *RARE)
# A user is at work: no time is too long.
DEBUGGER = 'debugger'
# Training is over.
ENDED = 'ended'
# Calls that are no phase, but show that a run is under way.
_LOOP, _RUNNER = 'loop', 'runner'
# The first that is found is the phase; calls inside of it do not count.
_OUTER = (DEBUGGER, 'compile', 'resume', 'checkpoint', 'hook', 'validation')

_RUNNERS = ('mmengine/runner/runner.py', 'mmengine/runner/_flexible_runner.py')
_TRAIN_LOOPS = ('mmstable/loops/train.py',)
_LOOPS = ('mmengine/runner/loops.py', *_TRAIN_LOOPS)
_POSITION = ('mmstable/state/data_position.py',)
_OPTIM = ('mmengine/optim/', 'mmstable/optim/')
_OURS = ('mmengine', 'mmstable')
# The phase of a function ('' for any) in a file (by parts of its path).
_RULES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (_RUNNER, '', _RUNNERS),
    (_LOOP, 'run', _LOOPS),
    ('resume', 'load_or_resume', _RUNNERS),
    ('resume', 'reread', _POSITION),
    ('validation', 'val', _RUNNERS),
    ('validation', 'test', _RUNNERS),
    ('validation', '_validate', _TRAIN_LOOPS),
    ('hook', _CALLER, _RUNNERS),
    ('data', '', ('torch/utils/data/dataloader.py',)),
    ('data', '__next__', _POSITION),
    ('data', 'run_epoch', _LOOPS),
    ('forward', 'run_iter', _LOOPS),
    ('forward', 'run', ('mmstable/loops/train_step.py',)),
    ('backward', 'backward', ('torch/', *_OPTIM)),
    ('step', 'step', ('torch/optim/', *_OPTIM)),
    ('compile', '', ('torch/_dynamo/convert_frame.py',)),
    ('checkpoint', 'save_checkpoint', _OURS),
    ('checkpoint', '', ('mmstable/checkpoint/writer.py',)),
    ('checkpoint', 'save_emergency', _OURS),
    ('checkpoint', 'save_alone', _OURS),
    (DEBUGGER, '', ('/bdb.py', '/pdb.py', '/pydevd', '/debugpy/')),
)


class Phase(NamedTuple):
    """A phase of a run.

    Args:
        name (str): One of :data:`PHASES`, or :data:`DEBUGGER` or
            :data:`ENDED`.
        part (str): The hook's class in the phase 'hook'; in 'validation' the
            phase it would be in training. Defaults to ''.
    """

    name: str
    part: str = ''

    def __str__(self) -> str:
        return f'{self.name}: {self.part}' if self.part else self.name


def find_phase(calls: Sequence[Call]) -> Phase:
    """Find the phase of a run by the calls of its thread.

    Args:
        calls (Sequence[Call]): The outermost first.
    """
    found = [
        (name, call.hook)
        for call in calls
        for name in _names_of(call.file, call.function)
    ]
    names = [name for name, _ in found]
    if _RUNNER not in names and _LOOP not in names:
        return Phase(ENDED)
    if names.count(_LOOP) > 1:
        # A loop inside of the training loop.
        names.append('validation')
    inner = next((name for name in reversed(names) if name in BUSY), '')
    outer = next((name for name in _OUTER if name in names), '')
    if outer == 'hook':
        return Phase(
            outer, [hook for name, hook in found if name == outer][-1]
        )
    return Phase(
        outer or inner or 'other', inner if outer == 'validation' else ''
    )


# The same few functions are looked up again and again.
@lru_cache(maxsize=4096)
def _names_of(path: str, function: str) -> tuple[str, ...]:
    file = path.replace(os.sep, '/')
    return tuple(
        name
        for name, of, parts in _RULES
        if of in ('', function) and any(part in file for part in parts)
    )


# Iterations of a process that are slow by nature.
FIRST_ITERATIONS = 3


class PhaseLimits:
    """Limits that are learned from the run, or set by hand.

    The second longest time of each phase is remembered, so that a single
    outlier does not raise its limit. The first iterations are slow by nature
    and do not count, unless a phase takes long in all of them. Phases too
    short to be seen need not be remembered: the least limit covers them.

    Args:
        by_hand (Mapping): Limits in seconds, by phase or by class of a hook.
        least (float): Least limit of the phases of every iteration.
        least_rare (float): Least limit of rare phases and first iterations.
        factor (float): How many times longer than before is too long.
    """

    def __init__(
        self,
        by_hand: Mapping[str, float],
        least: float,
        least_rare: float,
        factor: float,
    ) -> None:
        self._by_hand = dict(by_hand)
        self._least, self._least_rare = least, least_rare
        self._factor = factor
        # The longest times, in ascending order.
        self._longest: dict[Phase, list[float]] = {}
        self._first: dict[Phase, list[float]] = {}

    @property
    def shortest(self) -> float:
        """The least of all limits."""
        return min(self._least, self._least_rare, *self._by_hand.values())

    def learn(self, phase: Phase, seconds: float, is_first: bool) -> None:
        """Remember how long a phase has lasted.

        Args:
            phase (Phase): The phase.
            seconds (float): Its duration.
            is_first (bool): Whether it was in one of the first iterations.
        """
        is_slow = is_first and phase.name in BUSY
        times, kept = (
            (self._first, FIRST_ITERATIONS) if is_slow else (self._longest, 2)
        )
        times[phase] = sorted([*times.get(phase, []), seconds])[-kept:]

    def of(self, phase: Phase, is_first: bool) -> float:
        """Return the limit of a phase, in seconds.

        Args:
            phase (Phase): The phase.
            is_first (bool): Whether it is in one of the first iterations.
        """
        if phase.name == DEBUGGER:
            return math.inf
        # A limit for 'data' does not apply to the data of a validation.
        part = '' if phase.part in PHASES else phase.part
        for name in (part, phase.name):
            if name in self._by_hand:
                return self._by_hand[name]
        is_rare = is_first or phase.name not in BUSY
        least = self._least_rare if is_rare else self._least
        seen = [0.0]
        for times, kept in (self._longest, 2), (self._first, FIRST_ITERATIONS):
            if len(times.get(phase, [])) == kept:
                seen.append(times[phase][0])
        return max(least, self._factor * max(seen))


class TrainingThread:
    """The thread that trains.

    Args:
        ident (int, optional): Its number; None for the thread that constructs
            this object. Defaults to None.
    """

    def __init__(self, ident: int | None = None) -> None:
        self.ident = ident or threading.get_ident()

    @property
    def is_current(self) -> bool:
        """Whether the caller is this thread."""
        return threading.get_ident() == self.ident

    def frame(self) -> FrameType | None:
        """Return its frame. Do not keep it: it holds all variables."""
        return sys._current_frames().get(self.ident)

    def calls(self) -> list[Call]:
        """List its calls, the outermost first."""
        return calls_of(self.frame())

    def phase(self) -> Phase:
        """Find the phase of the run by its calls."""
        return find_phase(self.calls())

    def has_ended(self) -> bool:
        """Whether training is over.

        mmengine's own loops call no hook after an exception.
        """
        return self.phase().name == ENDED


# Seconds between two looks; fewer if a limit is short.
_INTERVAL, _SHORTEST = 1.0, 0.05
# Looks in a row without a training call until the run counts as ended.
_LOOKS_TO_END = 3


@dataclass(frozen=True)
class Stall:
    """A phase that takes too long.

    Args:
        phase (Phase): The phase.
        seconds (float): How long it has taken so far.
        limit (float): How long it may take.
        calls (list[Call]): The calls of the training thread.
        is_over (bool): Whether it has ended by now, as it must have if the
            GIL was held. Defaults to False.
    """

    phase: Phase
    seconds: float
    limit: float
    calls: list[Call]
    is_over: bool = False


class Watchdog:
    """Watch the constructing thread, from a thread of its own.

    Only time in which the watching thread ran counts: a process that was
    suspended, or got no CPU time, does not hang. While a C function holds the
    GIL, the dead man's switch counts.

    Args:
        watched (HangWatchdogHook): Tells its ``progress``, and gets each
            look by ``on_look``, a phase over its limit by ``on_stall``, again
            at twice the time, and its end by ``on_recovery``.
        limits (PhaseLimits): How long phases may take.
        switch (DeadManSwitch): Knows the time in which the watching thread
            could not run.
    """

    def __init__(
        self, watched: Any, limits: PhaseLimits, switch: DeadManSwitch
    ) -> None:
        self._watched, self._limits, self._switch = watched, limits, switch
        self.interval = max(_SHORTEST, min(_INTERVAL, limits.shortest / 5))
        self._training = TrainingThread()
        self.frame = self._training.frame
        self._first_iteration, _ = watched.progress()
        self._thread = BackgroundThread('mmstable hang watchdog', self._run)
        self.start, self.stop = self._thread.start, self._thread.stop
        self._key: Any = None
        self._phase = Phase('other')
        self._is_first = True
        self._seconds = 0.0
        # The next report comes at this multiple of the limit.
        self._patience = 1.0
        self._looks_without = 0

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped."""
        return self._thread.is_stopped

    def _run(self, stopped: threading.Event) -> None:
        try:
            self._watch(stopped)
        finally:
            self._switch.close()
        if self._patience > 1:
            self._watched.on_recovery(self._phase, self._seconds)

    def _watch(self, stopped: threading.Event) -> None:
        # The switch never fires below the shortest limit.
        armed_for = max(2 * self.interval, self._limits.shortest)
        self._switch.arm(armed_for)
        last, is_stopped = time.monotonic(), False
        while not is_stopped and self._looks_without < _LOOKS_TO_END:
            is_stopped = stopped.wait(self.interval)
            now = time.monotonic()
            late, last = now - last, now
            held, dump = self._switch.read()
            # Also at the end: the run may stop before this thread gets the
            # GIL back.
            self._judge_dump(min(held, late), dump)
            if not is_stopped:
                self._look(min(late, 2 * self.interval))
                self._switch.arm(armed_for)

    def _look(self, spent: float) -> None:
        calls = self._training.calls()
        phase = find_phase(calls)
        if phase.name == ENDED:
            self._looks_without += 1
            return
        self._looks_without = 0
        iteration, rest = self._watched.progress()
        key = phase, iteration, rest
        if key != self._key:
            self._begin(phase, iteration)
            self._key = key
        else:
            self._seconds += spent
        limit = self._limits.of(phase, self._is_first)
        self._watched.on_look(phase, self._seconds, limit)
        if self._seconds > limit * self._patience:
            self._patience *= 2
            self._report(Stall(phase, self._seconds, limit, calls))

    def _begin(self, phase: Phase, iteration: int) -> None:
        before = self._phase, self._seconds
        self._limits.learn(*before, self._is_first)
        if self._patience > 1:
            self._watched.on_recovery(*before)
        self._phase, self._seconds, self._patience = phase, 0.0, 1.0
        self._is_first = iteration - self._first_iteration < FIRST_ITERATIONS

    def _judge_dump(self, held: float, dump: str) -> None:
        """Judge the time in which this thread could not run."""
        if held == 0:
            return
        calls = read_dump(dump)
        phase = find_phase(calls)
        limit = self._limits.of(phase, self._is_first)
        if held > limit and phase.name != ENDED:
            self._report(Stall(phase, held, limit, calls, is_over=True))

    def _report(self, stall: Stall) -> None:
        # Training may continue while the report looks into other processes.
        self._switch.arm(math.inf)
        self._watched.on_stall(stall)
