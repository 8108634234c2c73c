"""Processes that have imported the heavy packages when they begin.

Importing takes longer than what most of them do.
"""

from __future__ import annotations

import atexit
import io
import multiprocessing
import os
import pickle
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import connection, forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# What every run imports, most of it when it begins: torch's optimizers need
# its compiler, and the visualizer of mmengine a figure.
OF_EVERY_RUN = [
    'mmengine.runner',
    'torch._dynamo',
    'matplotlib.backends.backend_agg',
    'matplotlib.figure',
    'mpl_toolkits.mplot3d',
    'tests.formatted',
]
# What a test puts on its own path is not for the processes that it starts.
_INSTALLED = [
    path
    for path in sys.path
    if path.startswith(sys.base_prefix) or 'site-packages' in path
]
_INSTALLED.append(str(ROOT))


def preloaded_context() -> ForkServerContext:
    """Starts processes that know torch and mmengine, but not mmstable."""
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload(OF_EVERY_RUN)
    return context


def run_script(
    text: str, folder: Path, **variables: str
) -> tuple[int | None, str]:
    """Run a script in a folder: its exit code, and what it printed."""
    env = {**os.environ, **variables}
    run = Preloaded(['-c', text], folder, env, subprocess.STDOUT)
    try:
        printed, __ = run.communicate(timeout=100)
    finally:
        run.kill()
    return run.returncode, printed


class Preloaded(subprocess.Popen):
    """Python with other words of the command line, as from a subprocess.

    For programs of mmstable, not for what an import does: the interpreter is
    a copy of one that has imported mmengine.

    Args:
        words: What follows the interpreter: a script, ``-m`` and a module, or
            ``-c`` and a text, and arguments.
        folder: Where it runs.
        env: Its environment variables.
        stderr: ``PIPE``, or ``STDOUT`` to read both together.
        new_session: Whether it gets a process group of its own.
    """

    def __init__(
        self,
        words: list[str],
        folder: Path | str,
        env: Mapping[str, str],
        stderr: int = subprocess.PIPE,
        new_session: bool = False,
    ) -> None:
        preloaded_context()
        self.args = [sys.executable, *words]
        self.returncode = None
        self.stdin = None
        self.encoding, self.errors = 'utf-8', 'replace'
        self.text_mode, self.universal_newlines = True, True
        self._child_created = False
        self._communication_started = False
        self._input = None
        self.stdout, out = _pipe()
        self.stderr, error = None, out
        if stderr == subprocess.PIPE:
            self.stderr, error = _pipe()
        self._status, send = forkserver.connect_to_new_process([out, error])
        for descriptor in {out, error}:
            os.close(descriptor)
        program = _Program(list(words), str(folder), dict(env), new_session)
        with open(send, 'wb') as file:
            # As multiprocessing does: settings of the interpreter come first.
            pickle.dump({'sys_path': _INSTALLED}, file)
            pickle.dump(program, file)
        self.pid = forkserver.read_signed(self._status)

    def _internal_poll(self, *args: Any, **kwargs: Any) -> int | None:
        return self._await(0)

    def _wait(self, timeout: float | None) -> int:
        if self._await(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self._await(0) or 0

    def _await(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            if not connection.wait([self._status], timeout):
                return None
            self.returncode = forkserver.read_signed(self._status)
            os.close(self._status)
        return self.returncode


def _pipe() -> tuple[io.TextIOWrapper, int]:
    read, write = os.pipe()
    return open(read, encoding='utf-8', errors='replace'), write


@dataclass
class _Program:
    """What a new process runs, in place of a process of multiprocessing."""

    words: list[str]
    folder: str
    env: dict[str, str]
    new_session: bool

    def _bootstrap(self, sentinel: int) -> None:
        os.close(sentinel)
        if self.new_session:
            os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        self._open_streams()
        os.environ.clear()
        os.environ.update(self.env)
        os.chdir(self.folder)
        code = 1
        try:
            self._run()
            code = 0
        except SystemExit as end:
            if isinstance(end.code, (int, type(None))):
                code = end.code or 0
            else:
                print(end.code, file=sys.stderr)
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
            if isinstance(error, KeyboardInterrupt):
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGINT)
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)

    def _run(self) -> None:
        first, *rest = self.words
        root = os.path.dirname(os.path.abspath(first))
        sys.orig_argv = [sys.executable, *self.words]
        sys.argv = [first, *rest]
        if first in ('-m', '-c'):
            root, sys.argv = os.getcwd(), [first, *rest[1:]]
        path = filter(None, self.env.get('PYTHONPATH', '').split(':'))
        sys.path[:] = [root, *path, *sys.path]
        if first == '-m':
            runpy.run_module(rest[0], run_name='__main__', alter_sys=True)
        elif first == '-c':
            sys.modules['__main__'] = main = ModuleType('__main__')
            exec(compile(rest[0], '<string>', 'exec'), vars(main))
        else:
            runpy.run_path(first, run_name='__main__')

    def _open_streams(self) -> None:
        for target, source in enumerate(
            forkserver._forkserver._inherited_fds, 1
        ):
            os.dup2(source, target)
        for source in {*forkserver._forkserver._inherited_fds}:
            os.close(source)
        encoding = self.env.get('PYTHONIOENCODING', 'utf-8').split(':')[0]
        is_direct = bool(self.env.get('PYTHONUNBUFFERED'))
        sys.stdout = open(1, 'w', encoding=encoding, closefd=False)  # noqa: SIM115
        sys.stdout.reconfigure(write_through=is_direct)
        sys.stderr = open(  # noqa: SIM115
            2, 'w', 1, encoding, 'backslashreplace', closefd=False
        )
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
