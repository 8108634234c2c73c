"""The package ``probing``, opened for a run.

Importing it starts its server, whose socket every user of this machine can
use. So it is imported only when it is asked for.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import random
import re
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mmstable.liveness.probe.console import Console
from mmstable.messages import _

# How its users ask for the times of modules.
_PROFILING = 'PROBING_TORCH_PROFILING'
# What would open a port to the whole network; and what makes Python take
# another thread for its main one, so that nobody gets signals any more.
_NEVER = (
    'PROBING_PORT',
    'PROBING_SERVER_ADDR',
    _PROFILING,
)
_CONSOLE = 'probing.repl'
_READS = re.compile(r'\s*(select|show|with|describe)\b', re.I)
# Of an answer.
_MOST_ROWS = 1000


def is_installed() -> bool:
    """Whether it can be imported, without doing so."""
    return importlib.util.find_spec('probing') is not None


def asks_for_times() -> bool:
    """Whether the environment asks for the times of modules."""
    return os.environ.get(_PROFILING, '').lower() in ('on', '1', 'true')


class ProbingBridge:
    """Lets ``probing`` look into this process.

    Its own console needs a package that it does not ask for, loses loops and
    runs code while a step is being made: another one takes its place.

    Args:
        console (Console): Runs code.
    """

    def __init__(self, console: Console) -> None:
        with _without_settings():
            import probing
        self._probing = probing
        # Whether it measures how long modules take.
        self.traces = False
        module: Any = types.ModuleType(_CONSOLE)
        module.__path__ = []
        module.debug_console = console
        # Newer releases ask for it.
        module.get_debug_console = lambda: console
        sys.modules[_CONSOLE] = probing.repl = module

    def make_table(self, name: str, columns: Sequence[str]) -> Any:
        """A table of this process, in the place of an earlier run's."""
        return self._probing.ExternalTable(name, list(columns))

    def trace_modules(self) -> None:
        """Fill ``python.torch_trace``: how long modules take."""
        from probing.profiling import torch_probe

        # It draws a number after every step: not one of the run's.
        torch_probe.random = random.Random()
        torch_probe.configure('on')
        self.traces = True

    def query(self, sql: str) -> dict[str, list[Any]]:
        """The answer to a query, by column.

        Raises:
            ValueError: If it cannot be answered; ``probing`` gives no reason.
        """
        # Other statements change settings, and can open a port.
        if not _READS.match(sql) or ';' in sql.rstrip(' \n\t;'):
            raise ValueError(
                _(
                    'only one statement that reads: SELECT, WITH, SHOW or '
                    'DESCRIBE'
                )
            )
        core = importlib.import_module('probing._core')
        answer = json.loads(core.query_json(sql))
        if answer is None:
            raise ValueError(
                _(
                    '`probing` gives no answer and no reason: is the SQL '
                    'right, and is the table there? `SHOW TABLES` lists all'
                )
            )
        return {
            name: next(iter(column.values()))[:_MOST_ROWS]
            for name, column in zip(answer['names'], answer['cols'])
        }

    def close(self) -> None:
        """End the tracing; its server cannot be ended."""
        from probing.ext import torch as extension
        from probing.profiling.torch_probe import configure

        configure('off')
        extension.deinit()
        # It holds optimizers, and takes a later run's for one it knows.
        extension.hooks.clear()


@contextmanager
def _without_settings() -> Iterator[None]:
    hidden = {key: os.environ.pop(key) for key in _NEVER if key in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
