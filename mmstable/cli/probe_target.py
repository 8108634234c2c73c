"""Which processes on this machine train what the user means?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from mmstable.errors import UsageError
from mmstable.liveness.probe.client import ProbeError, ask
from mmstable.liveness.probe.sockets import find_sockets, socket_pid
from mmstable.messages import _

_HOOK = "dict(type='mmstable.LiveProbeHook')"


_Silent = tuple[int, Exception]


class Rank(NamedTuple):
    """A process of a run.

    Args:
        pid (int): Its number.
        path (Path): Its socket.
        status (dict): What it says about itself.
    """

    pid: int
    path: Path
    status: dict[str, Any]

    @property
    def rank(self) -> int:
        """Its number in the run."""
        return self.status['rank']

    def ask(self, command: str, **arguments: Any) -> Any:
        """Ask it something; it may have ended meanwhile."""
        try:
            return ask(self.path, command, **arguments)
        except OSError as error:
            raise _silent(self.pid, error) from None


def find_ranks(target: str) -> list[Rank]:
    """The processes of a run on this machine, by rank.

    Args:
        target (str): One of them, a process that has started them, or their
            work directory.

    Raises:
        UsageError: If there is no such run, or more than one.
    """
    if target.isdigit():
        return _by_pid(int(target))
    if not os.path.isdir(target):
        raise UsageError(
            _(
                "'{target}' is neither a process number nor a folder",
                target=target,
            )
        )
    folder = os.path.realpath(target)
    living, silent = _ask_all(find_sockets())
    ranks = [
        rank
        for rank in living
        if folder in (rank.status['work_dir'], rank.status['log_dir'])
    ]
    if not ranks and silent:
        raise _silent(*silent[0])
    if not ranks:
        owner = _owner(Path(target))
        raise UsageError(
            _(
                "no run in '{folder}' can be looked into{owner}. Start it "
                'with `mmstable train CONFIG --probe`, or with {hook} in '
                'custom_hooks; right after the start it takes some seconds',
                folder=target,
                owner=owner,
                hook=_HOOK,
            )
        )
    if len({rank.rank for rank in ranks}) < len(ranks):
        pids = [rank.pid for rank in ranks]
        raise UsageError(
            _(
                "several runs train in '{folder}': name one of the processes "
                '{pids}',
                folder=target,
                pids=pids,
            )
        )
    return sorted(ranks, key=lambda one: one.rank)


def _by_pid(pid: int) -> list[Rank]:
    paths = find_sockets(pid)
    if paths:
        failure: OSError | None = None
        for path in paths:
            try:
                return [Rank(pid, path, ask(path, 'status'))]
            except OSError as error:
                failure = error
        if psutil.pid_exists(pid):
            raise _silent(pid, failure)
    children = [
        path for path in find_sockets() if pid in _parents(socket_pid(path))
    ]
    ranks, __ = _ask_all(children)
    if not ranks:
        raise UsageError(
            _(
                'process {pid} is no run that can be looked into. Start it '
                'with `mmstable train CONFIG --probe`, or with {hook} in '
                'custom_hooks; right after the start it takes some seconds',
                pid=pid,
                hook=_HOOK,
            )
        )
    return sorted(ranks, key=lambda one: one.rank)


def _ask_all(paths: list[Path]) -> tuple[list[Rank], list[_Silent]]:
    """The processes that answer, and those that do not."""
    ranks: list[Rank] = []
    silent: list[_Silent] = []
    for path in paths:
        pid = socket_pid(path)
        try:
            ranks.append(Rank(pid, path, ask(path, 'status')))
        except (ConnectionRefusedError, FileNotFoundError):
            # It has ended.
            continue
        except (OSError, ProbeError) as error:
            silent.append((pid, error))
    return ranks, silent


def _parents(pid: int) -> list[int]:
    """The processes that have started one, at any distance."""
    try:
        return [one.pid for one in psutil.Process(pid).parents()]
    except psutil.Error:
        return []


def _owner(folder: Path) -> str:
    """Who trains there, by the lock of ``mmstable train``."""
    from mmstable.lock_owner import NAME, Owner

    owner = Owner.read(folder / NAME)
    if owner is None or (owner.can_be_asked() and not owner.is_alive()):
        return ''
    return _(
        ', though process {pid} on {host} trains there',
        pid=owner.pid,
        host=owner.host,
    )


def _silent(pid: int, error: Exception | None) -> ProbeError:
    return ProbeError(
        _(
            'process {pid} does not answer ({error}): it has ended, is '
            "stopped, or a call in C holds Python's lock. `py-spy dump --pid "
            '{pid}` may tell; HangWatchdogHook writes '
            'stability/watchdog.rankN.txt',
            pid=pid,
            error=error,
        )
    )
