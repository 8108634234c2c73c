"""Start runs on the simulated device, and see what they did."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config

from tests.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
_CONFIG = Path(__file__).with_name('config.py')
_LIMIT_S = 100.0


@dataclass
class Run:
    """A run that has ended.

    Args:
        folder (Path): Its work dir.
        code (int): Its exit code.
        log (str): What it printed.
        seconds (float): How long it took.
    """

    folder: Path
    code: int
    log: str
    seconds: float = 0.0

    def digest(self, rank: int = 0) -> dict[str, Any]:
        """The state at the end, without the name of the device."""
        assert self.code == 0, self.log
        path = self.folder / f'digest.rank{rank}.json'
        return json.loads(path.read_text())

    def state(self) -> list[str]:
        """Digests of weights, buffers, averages and optimizer state."""
        names = ('weights', 'buffers', 'averages', 'optimizer')
        found = self.digest()
        return [found[name] for name in names]

    def counts(self) -> dict[str, Any]:
        """What CountHook has written."""
        assert self.code == 0, self.log
        return json.loads((self.folder / 'counts.json').read_text())

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Events of a kind, in the order of time."""
        files = sorted(self.folder.glob('*/stability/events.jsonl'))
        lines = [one for file in files for one in file.open()]
        return [e for e in map(json.loads, lines) if e.get('event') == kind]

    def saved(self, pattern: str = '*.pth') -> list[str]:
        """Names of checkpoints."""
        return sorted(one.name for one in self.folder.glob(pattern))


class Server:
    """Starts ``mmstable`` in processes of its own.

    Args:
        device (str): ``cuda``, or ``cpu`` for a torch as it is.
    """

    def __init__(self, device: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, '-m', 'tests.device.server', device],
            cwd=ROOT,
            env=child_environment(device),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def start(
        self, arguments: list[str], folder: Path, **env: str
    ) -> tuple[int, Path]:
        """Start a command; its process id and the file it prints to."""
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / f'log{env.get("RANK", "")}.txt'
        pid = self._ask(
            arguments=arguments, folder=str(folder), log=str(log), env=env
        )
        return pid, log

    def wait(self, pid: int) -> int:
        """Wait for a command; its exit code."""
        self._send(wait=pid)
        output = self._process.stdout
        assert output is not None
        # `select.select` fails above 1023 open files.
        answer = select.poll()
        answer.register(output, select.POLLIN)
        if not answer.poll(1000 * _LIMIT_S * PATIENCE):
            os.kill(pid, 9)
        return int(output.readline())

    def run(
        self, arguments: list[str], folder: Path, work_dir: Path | None = None
    ) -> Run:
        """Run a command to its end."""
        begin = time.monotonic()
        pid, log = self.start(arguments, folder)
        code = self.wait(pid)
        seconds = time.monotonic() - begin
        return Run(work_dir or folder, code, log.read_text(), seconds)

    def call(self, case: str, folder: Path) -> None:
        """Run a function of ``cases.py``; it must raise nothing."""
        run = self.run(['call', case], folder)
        assert run.code == 0, run.log

    def train(
        self, folder: Path, *options: str, hooks: Any = (), **changes: Any
    ) -> Run:
        """Train with a changed config, in ``folder/work``.

        Args:
            folder (Path): For the config, the log and the work dir.
            *options (str): Options of ``mmstable train``.
            hooks (Sequence[dict]): More hooks.
            **changes: Values by path in the config, with ``__`` for dots.
        """
        arguments = train_arguments(folder, *options, hooks=hooks, **changes)
        return self.run(arguments, folder, folder / 'work')

    def train_stock(self, folder: Path, **changes: Any) -> Run:
        """Train with mmengine alone; see :meth:`train`."""
        __, config, __, work = train_arguments(folder, **changes)
        return self.run(['stock', config, work], folder, folder / 'work')

    def train_ranks(
        self,
        folder: Path,
        *options: str,
        count: int = 2,
        hooks: Any = (),
        **changes: Any,
    ) -> list[Run]:
        """Train on several ranks; see :meth:`train`."""
        arguments = train_arguments(folder, *options, hooks=hooks, **changes)
        arguments += ['--launcher', 'pytorch']
        with socket.socket() as probe:
            probe.bind(('127.0.0.1', 0))
            port = str(probe.getsockname()[1])
        begun = [
            self.start(
                arguments,
                folder,
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(count),
                LOCAL_WORLD_SIZE=str(count),
                MASTER_ADDR='127.0.0.1',
                MASTER_PORT=port,
            )
            for rank in range(count)
        ]
        codes = [self.wait(pid) for pid, __ in begun]
        return [
            Run(folder / 'work', code, log.read_text())
            for code, (__, log) in zip(codes, begun)
        ]

    def _send(self, **request: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + '\n')
        self._process.stdin.flush()

    def _ask(self, **request: Any) -> int:
        self._send(**request)
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


def train_in_new_process(
    folder: Path, *options: str, hooks: Any = (), **changes: Any
) -> Run:
    """Train as ``python -m mmstable`` on the device; see Server.train."""
    arguments = train_arguments(folder, *options, hooks=hooks, **changes)
    return run_in_new_process(folder, arguments)


def run_in_new_process(folder: Path, arguments: list[str]) -> Run:
    """Run ``python -m mmstable`` on the device."""
    done = subprocess.run(
        [sys.executable, '-m', 'mmstable', *arguments],
        cwd=folder,
        env=child_environment('cuda'),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=5 * _LIMIT_S * PATIENCE,
    )
    return Run(folder / 'work', done.returncode, done.stdout)


def child_environment(device: str) -> dict[str, str]:
    """Let Python start with the simulated device, or without it."""
    path = str(ROOT)
    if device == 'cuda':
        path = f'{ROOT / "tests/device/start"}:{path}'
    return {
        **os.environ,
        'PYTHONPATH': path,
        'OMP_NUM_THREADS': '1',
        'FAKECUDA_DEVICES': '8',
    }


def train_arguments(
    folder: Path, *options: str, hooks: Any = (), **changes: Any
) -> list[str]:
    """Write a config; the arguments that train with it."""
    config = Config.fromfile(_CONFIG)
    config.custom_hooks = [*config.custom_hooks, *hooks]
    config.merge_from_dict(
        {key.replace('__', '.'): value for key, value in changes.items()}
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / 'config.py'
    config.dump(path)
    work = str(folder / 'work')
    return ['train', str(path), '--work-dir', work, *options]
