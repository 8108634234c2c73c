"""The package ``probing``, opened for a run: code, SQL, tables.

Importing it starts its server, whose socket every user of this machine can
use, so it is imported only on request. Code that is sent to a run is executed
by the training thread between two steps.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import io
import json
import math
import os
import random
import re
import sys
import threading
import traceback
import types
from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Callable

import torch

from mmstable import runner_view
from mmstable.events.codec import encode
from mmstable.events.records import Event, StepReport
from mmstable.messages import _
from mmstable.probe.run import Boundary, LiveRun


class _ThreadStdout:
    """Standard output with the text of one thread captured."""

    def __init__(self, original: Any, captured: io.StringIO) -> None:
        self._original, self._captured = original, captured
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() == self._thread:
            return self._captured.write(text)
        return self._original.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


@contextmanager
def captured_output() -> Iterator[io.StringIO]:
    """Capture the output of this thread only."""
    out, before = io.StringIO(), sys.stdout
    stand_in: Any = _ThreadStdout(before, out)
    sys.stdout = stand_in
    try:
        yield out
    finally:
        # Another thread may have wrapped this one meanwhile.
        if sys.stdout is stand_in:
            sys.stdout = before


_MAX_OUTPUT_CHARS = 1 << 20
# The file name in tracebacks.
_FILE = '<probe>'


class Console:
    """Run code between two steps, in place of the console of ``probing``.

    Names live on from one piece of code to the next. As in an interactive
    Python, the value of an expression at the end is printed.

    Args:
        boundary (Boundary): Hands the code to the training thread.
        names (dict): The names that the code can use.
        around (Callable): Returns a context for a piece of code; it yields a
            list of lines to be added to the answer.
        patience (float): Seconds to wait for the end of a step. Then the
            code runs at once, on the calling thread. Defaults to 5.0.
    """

    def __init__(
        self,
        boundary: Boundary,
        names: dict[str, Any],
        around: Callable[[str], AbstractContextManager[list[str]]],
        patience: float = 5.0,
    ) -> None:
        self._boundary = boundary
        self._names = {'__name__': '__probe__', **names}
        self._around = around
        self._patience = patience
        self._turn = threading.Lock()

    def push(self, code: str) -> str:
        """Run code, and return the answer in the JSON of ``probing``."""
        job = self._boundary.post(lambda: self._run(code))
        wait([job], self._patience)
        if not job.cancel():
            return json.dumps(job.result())
        answer = self._run(code)
        note = _(
            '[mmstable: no step ended within {seconds:g} s, so the code ran '
            'at once, on another thread than the training. A changed '
            'learning rate is not kept as a factor.]',
            seconds=self._patience,
        )
        answer['output'] = '\n'.join(filter(None, [answer['output'], note]))
        return json.dumps(answer)

    def _run(self, code: str) -> dict[str, Any]:
        # Code on another thread may never end: training does not wait.
        if not self._turn.acquire(blocking=False):
            trace = [_('mmstable: the previous code is still running')]
            return dict(status='error', output='', traceback=trace)
        trace, notes = [], []
        with captured_output() as out:
            try:
                with self._around(code) as notes:
                    self._execute(code)
            except BaseException:  # `exit()` must not end the run.
                trace = traceback.format_exc().splitlines()
            finally:
                self._turn.release()
        text = out.getvalue().strip()
        if len(text) > _MAX_OUTPUT_CHARS:
            text = f'{text[:_MAX_OUTPUT_CHARS]}\n...'
        return dict(
            status='error' if trace else 'ok',
            output='\n'.join(filter(None, [text, *notes])),
            traceback=trace,
        )

    def _execute(self, code: str) -> None:
        tree = ast.parse(code, _FILE)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body.pop().value)  # type: ignore
        exec(compile(tree, _FILE, 'exec'), self._names)
        if last is not None:
            value = eval(compile(last, _FILE, 'eval'), self._names)
            if value is not None:
                print(repr(value))


# Enables the measurement of module times.
_PROFILING = 'PROBING_TORCH_PROFILING'
# The first two open a port to the network. With the last one, Python takes
# another thread for its main one, and signals are lost.
_NEVER = ('PROBING_PORT', 'PROBING_SERVER_ADDR', _PROFILING)
_CONSOLE = 'probing.repl'
_READS = re.compile(r'\s*(select|show|with|describe)\b', re.I)
_MOST_ROWS = 1000


def is_installed() -> bool:
    """Whether ``probing`` can be imported, without importing it."""
    return importlib.util.find_spec('probing') is not None


def open_bridge(run: LiveRun) -> ProbingBridge | None:
    """Open a run to ``probing``; None if that is not installed."""
    log = run.runner.logger
    if not is_installed():
        log.warning(
            _(
                'LiveProbeHook: `probing` is not installed; only '
                '`mmstable probe` works, without SQL and code. Install '
                'it with `pip install mmstable[probing]`.'
            )
        )
        return None
    bridge = ProbingBridge(
        Console(run.boundary, names_of(run), run.noticing_changes)
    )
    is_wanted = os.environ.get(_PROFILING, '').lower() in ('on', '1', 'true')
    if is_wanted and not runner_view.is_compiled(run.runner.model):
        bridge.trace_modules()
    log.warning(
        _(
            'LiveProbeHook: EVERY user of this machine can now run code '
            'as you in this process: the socket of `probing` does not '
            'authenticate its clients. Use it only on machines whose '
            'users you trust; `mmstable probe` works without it '
            '(`--probe` alone).'
        )
    )
    return bridge


class ProbingBridge:
    """Open this process to ``probing``.

    Its console needs a package that it does not require, loses loops, and
    runs code in the middle of a step: :class:`Console` replaces it.

    Args:
        console (Console): Runs code.
    """

    def __init__(self, console: Console) -> None:
        with _without_settings():
            import probing
        # Whether it measures how long modules take.
        self.traces = False
        module: Any = types.ModuleType(_CONSOLE)
        module.__path__ = []
        module.debug_console = console
        # Newer releases call this.
        module.get_debug_console = lambda: console
        sys.modules[_CONSOLE] = probing.repl = module

        # Those of an earlier run of this process are used again.
        self._steps = probing.ExternalTable(STEPS, list(STEP_COLUMNS))
        self._events = probing.ExternalTable(EVENTS, list(EVENT_COLUMNS))

    def add_step(self, report: StepReport) -> None:
        """Add a row to the table of steps."""
        self._steps.append(step_row(report))

    def add_event(self, event: Event) -> None:
        """Add a row to the table of events."""
        self._events.append(event_row(event))

    def trace_modules(self) -> None:
        """Fill ``python.torch_trace``: how long modules take."""
        from probing.profiling import torch_probe

        # It draws a random number after every step: not from the run's.
        torch_probe.random = random.Random()
        torch_probe.configure('on')
        self.traces = True

    def query(self, sql: str) -> dict[str, list[Any]]:
        """Answer a query, by column.

        Raises:
            ValueError: If the query fails; ``probing`` gives no reason.
        """
        # Other statements change settings, or open a port.
        if not _READS.match(sql) or ';' in sql.rstrip(' \n\t;'):
            raise ValueError(
                _(
                    'only a single read statement is allowed: SELECT, WITH, '
                    'SHOW or DESCRIBE'
                )
            )
        core = importlib.import_module('probing._core')
        answer = json.loads(core.query_json(sql))
        if answer is None:
            raise ValueError(
                _(
                    '`probing` returned nothing and no reason: check the '
                    'SQL and the name of the table (`SHOW TABLES` lists all)'
                )
            )
        return {
            name: next(iter(column.values()))[:_MOST_ROWS]
            for name, column in zip(answer['names'], answer['cols'])
        }

    def close(self) -> None:
        """End the tracing; the server of ``probing`` cannot be ended."""
        from probing.ext import torch as extension
        from probing.profiling.torch_probe import configure

        configure('off')
        extension.deinit()
        # It holds optimizers, and confuses those of a later run with them.
        extension.hooks.clear()


@contextmanager
def _without_settings() -> Iterator[None]:
    hidden = {key: os.environ.pop(key) for key in _NEVER if key in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


# `probing` shows a table as empty if a column changes its type, or if one
# value is None.
STEPS = 'mmstable_steps'
STEP_COLUMNS: dict[str, type] = dict(
    iteration=int,
    time=float,
    wrapper=str,
    rank=int,
    outcome=str,
    fault=str,
    loss=float,
    loss_scale=float,
    next_loss_scale=float,
    grad_norm=float,
    clip_coef=float,
    culprits=str,
)
EVENTS = 'mmstable_events'
EVENT_COLUMNS = ('iteration', 'time', 'event', 'facts')
_NONE: dict[type, Any] = {float: math.nan, str: ''}
_MOST_CULPRITS, _MAX_CELL_CHARS = 5, 4000


def step_row(report: StepReport) -> list[Any]:
    """Turn a step into a row."""
    culprits = [one.name for one in report.culprits[:_MOST_CULPRITS]]
    values = {**vars(report), 'culprits': ' '.join(culprits)}
    return [
        _NONE[kind] if values[name] is None else kind(values[name])
        for name, kind in STEP_COLUMNS.items()
    ]


def event_row(event: Event) -> list[Any]:
    """Turn an event into a row, with all its fields as JSON, maybe cut."""
    facts = encode(event).decode('ascii').strip()[:_MAX_CELL_CHARS]
    return [int(event.iteration), float(event.time), str(event.event), facts]


class Trainer:
    """The attributes that debugging guides expect of a trainer.

    Args:
        run (LiveRun): The run.
    """

    def __init__(self, run: LiveRun) -> None:
        self._run = run

    @property
    def current_step(self) -> int:
        """Training iterations done."""
        return self._run.iteration

    @property
    def grad_clip(self) -> Any:
        """The clip limit; one for each wrapper if there are several."""
        names = runner_view.wrappers(self._run.runner)
        found = {name: self._run.read_clip(name) for name in names}
        return found if len(found) > 1 else next(iter(found.values()))

    @grad_clip.setter
    def grad_clip(self, limit: float | Mapping[str, float]) -> None:
        wrappers = runner_view.wrappers(self._run.runner)
        if not isinstance(limit, Mapping):
            limit = dict.fromkeys(wrappers, limit)
        for name, value in limit.items():
            self._run.change('clip', name, [float(value)])


def names_of(run: LiveRun) -> dict[str, Any]:
    """Names that code sent to a run can use."""
    runner = run.runner
    optimizers = runner_view.optimizers(runner)
    first, *others = optimizers.values()
    return dict(
        torch=torch,
        runner=runner,
        trainer=Trainer(run),
        model=runner_view.saved_model(runner),
        # Several of them by the name of their wrapper.
        optimizer=optimizers if others else first,
        train_loader=runner.train_loop.dataloader,
    )
