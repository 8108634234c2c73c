"""Hosts made of network namespaces, for the soak of many machines.

Each host has its own network, name and ``/etc/hosts``; they share a disk. A
cut takes the link of one host down: nothing arrives any more, no FIN either.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Enters the namespaces, then becomes the program.
_ENTER = """
import ctypes, os, sys
space, name, hosts, *program = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def do(result):
    if result:
        raise OSError(ctypes.get_errno(), 'cannot enter the namespace')
file = os.open(f'/run/netns/{space}', os.O_RDONLY)
do(libc.setns(file, 0x40000000))
do(libc.unshare(0x04000000 | 0x20000))
do(libc.sethostname(name.encode(), len(name)))
do(libc.mount(b'none', b'/', None, 0x4000 | 0x40000, None))
do(libc.mount(hosts.encode(), b'/etc/hosts', None, 0x1000, None))
os.execv(program[0], program)
"""


def why_not() -> str:
    """Why there are no hosts here; '' if there can be."""
    if sys.platform != 'linux' or os.geteuid() != 0:
        return 'network namespaces need root on Linux'
    if shutil.which('ip') is None:
        return 'network namespaces need iproute2 (`ip`)'
    test = f'mmstable-test-{os.getpid()}'
    made = subprocess.run(
        ['ip', 'netns', 'add', test], check=False, capture_output=True
    )
    subprocess.run(
        ['ip', 'netns', 'del', test], check=False, capture_output=True
    )
    return made.stderr.decode().strip()


def _ip(*words: str) -> None:
    subprocess.run(['ip', *words], check=True, capture_output=True)


class Hosts:
    """Hosts on one switch, which is a bridge in its own namespace.

    Args:
        count: How many.
        folder: For their files.
    """

    def __init__(self, count: int, folder: Path) -> None:
        self._tag = f'mm{os.getpid()}'
        self._switch = f'{self._tag}s'
        self.names = [f'{self._tag}h{n}' for n in range(count)]
        self._file = folder / 'hosts'
        lines = [f'{self.address(n)} host{n}' for n in range(count)]
        self._file.write_text('\n'.join(['127.0.0.1 localhost', *lines, '']))
        self._running: list[subprocess.Popen] = []

    def __enter__(self) -> Hosts:
        switch = self._switch
        _ip('netns', 'add', switch)
        _ip('-n', switch, 'link', 'add', 'br0', 'type', 'bridge')
        _ip('-n', switch, 'link', 'set', 'br0', 'up')
        for number, name in enumerate(self.names):
            _ip('netns', 'add', name)
            port = f'{name}v'
            pair = ['type', 'veth', 'peer', 'name', 'eth0', 'netns', name]
            _ip('link', 'add', port, 'netns', switch, *pair)
            _ip('-n', switch, 'link', 'set', port, 'master', 'br0', 'up')
            own = f'{self.address(number)}/24'
            _ip('-n', name, 'addr', 'add', own, 'dev', 'eth0')
            for device in ('eth0', 'lo'):
                _ip('-n', name, 'link', 'set', device, 'up')
        return self

    def __exit__(self, *args: object) -> None:
        for process in self._running:
            self.kill_host(process)
        for name in (self._switch, *self.names):
            with suppress(subprocess.CalledProcessError):
                _ip('netns', 'del', name)

    def address(self, number: int) -> str:
        return f'10.77.0.{number + 1}'

    def cut(self, number: int) -> None:
        """Take the link of a host down."""
        port = f'{self.names[number]}v'
        _ip('-n', self._switch, 'link', 'set', port, 'down')

    def join(self, number: int) -> None:
        """Take it up again."""
        port = f'{self.names[number]}v'
        _ip('-n', self._switch, 'link', 'set', port, 'up')

    def start(
        self,
        number: int,
        words: Sequence[str],
        folder: Path,
        log: Path,
        env: Mapping[str, str],
    ) -> subprocess.Popen:
        """Start Python on a host."""
        enter = [self.names[number], f'host{number}', str(self._file)]
        variables = {
            **os.environ,
            'PYTHONPATH': f'{folder}:{ROOT}',
            'GLOO_SOCKET_IFNAME': 'eth0',
            'OMP_NUM_THREADS': '1',
            **env,
        }
        with log.open('ab') as output:
            process = subprocess.Popen(
                [sys.executable, '-c', _ENTER, *enter, sys.executable, *words],
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running.append(process)
        return process

    def kill_host(self, process: subprocess.Popen) -> None:
        """Kill a process and all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_all(
    processes: Sequence[subprocess.Popen], seconds: float
) -> list[tuple[int | None, float]]:
    """Exit code and seconds until the end of each; None if it hangs."""
    begin = time.monotonic()
    ends: dict[int, tuple[int | None, float]] = {}
    while len(ends) < len(processes):
        waited = time.monotonic() - begin
        for number, process in enumerate(processes):
            if number not in ends and process.poll() is not None:
                ends[number] = process.returncode, waited
            elif number not in ends and waited > seconds:
                ends[number] = None, waited
        time.sleep(0.05)
    return [ends[number] for number in range(len(processes))]
