"""Do processes find each other, and add up right?"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from mmstable.doctor.devices import devices
from mmstable.doctor.items import Item, Plan, fact, found
from mmstable.doctor.ranks import __path__ as _FOLDER
from mmstable.finding import Severity
from mmstable.messages import _

_RANK = Path(_FOLDER[0]) / 'one_rank.py'
_LENGTH = 1 << 16
_LONGEST = 4000


def processes(plan: Plan) -> Iterator[Item]:
    """Start DDP with one and with two processes, on loopback."""
    gpus = len(devices()) - 1
    starts = [('gloo', 1), ('gloo', 2)]
    starts += [('nccl', ranks) for ranks in (1, 2) if ranks <= gpus]
    for backend, ranks in starts:
        began = time.monotonic()
        problem = start(backend, ranks, plan.patience)
        took = time.monotonic() - began
        name = f'{backend} x {ranks}'
        if problem:
            yield found(
                'ddp_start', Severity.ERROR, name, ranks=ranks, error=problem
            )
            # Two will not do what one cannot.
            return
        yield fact('ddp', _('right, in {seconds:.1f} s', seconds=took), name)


def start(
    backend: str, ranks: int, patience: float, program: Path = _RANK
) -> str:
    """Start processes and compare their sums; '' if all is well.

    Args:
        backend (str): 'gloo' or 'nccl'.
        ranks (int): How many processes.
        patience (float): Seconds to wait for them.
        program (Path): What they run. Defaults to one_rank.py.
    """
    port = _free_port()
    started: list[subprocess.Popen[str]] = []
    try:
        for rank in range(ranks):
            started.append(
                _process(program, backend, patience, rank, ranks, port)
            )
        return _wait(started, ranks, patience)
    finally:
        for one in started:
            one.kill()
            # Closes its pipes, too.
            one.communicate()


def _process(
    program: Path,
    backend: str,
    patience: float,
    rank: int,
    ranks: int,
    port: int,
) -> subprocess.Popen[str]:
    env = {
        **os.environ,
        'MASTER_ADDR': '127.0.0.1',
        'MASTER_PORT': str(port),
        'RANK': str(rank),
        'WORLD_SIZE': str(ranks),
        'OMP_NUM_THREADS': '1',
    }
    return subprocess.Popen(
        [sys.executable, str(program), backend, str(patience)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors='replace',
    )


def _wait(
    started: list[subprocess.Popen[str]], ranks: int, patience: float
) -> str:
    until = time.monotonic() + patience
    total = ranks * sum(range(_LENGTH)) + _LENGTH * sum(range(ranks))
    expected = [str(total), str((1 + ranks) / 2)]
    for rank, one in enumerate(started):
        try:
            out, err = one.communicate(timeout=until - time.monotonic())
        except subprocess.TimeoutExpired:
            return _(
                'rank {rank} has not ended within {seconds:g} s',
                rank=rank,
                seconds=patience,
            )
        if one.returncode:
            last = err[-_LONGEST:].strip().splitlines()[-1:]
            return _(
                'rank {rank} ended with code {code}: {error}',
                rank=rank,
                code=one.returncode,
                error=last,
            )
        if out.split()[-2:] != expected:
            return _(
                'rank {rank} got {got}, expected {expected: }',
                rank=rank,
                got=out,
                expected=expected,
            )
    return ''


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(('127.0.0.1', 0))
        return int(one.getsockname()[1])
