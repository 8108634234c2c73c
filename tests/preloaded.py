"""Processes that have imported the heavy packages when they begin.

Importing takes longer than what most of them do.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.context import ForkServerContext
from pathlib import Path

from tests.patience import PATIENCE


def preloaded_context() -> ForkServerContext:
    """Starts processes that know mmengine, mmstable and the toys."""
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload(['mmengine.runner', 'tests.toys'])
    return context


def run_script(text: str, folder: Path) -> tuple[int | None, str]:
    """Run a script in a folder: its exit code, and what it printed."""
    process = preloaded_context().Process(target=_run, args=(text, folder))
    process.start()
    process.join(100 * PATIENCE)
    process.kill()
    return process.exitcode, (folder / 'printed').read_text(encoding='utf-8')


def _run(text: str, folder: Path) -> None:
    os.chdir(folder)
    with open('printed', 'wb') as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    exec(compile(text, '<string>', 'exec'), {'__name__': '__main__'})
