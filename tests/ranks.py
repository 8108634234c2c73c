"""Run a function on several processes that are joined by gloo."""

from __future__ import annotations

import os
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Callable

import torch
from torch import multiprocessing

from tests.patience import PATIENCE
from tests.preloaded import preloaded_context

Work = Callable[[int, Path], None]


def run_ranks(work: Work, folder: Path, count: int = 2) -> None:
    """Run ``work(rank, folder)`` on each rank; it must come from a module.

    Whether it came to its end is judged by a file.
    """
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    preloaded_context()
    context = multiprocessing.start_processes(
        _run,
        args=(work, str(folder), count, port),
        nprocs=count,
        join=False,
        start_method='forkserver',
    )
    deadline = time.monotonic() + 60 * PATIENCE
    try:
        while not context.join(timeout=1):
            assert time.monotonic() < deadline, 'the ranks hang'
    finally:
        for process in context.processes:
            process.kill()
    for rank in range(count):
        assert (folder / f'done_{rank}').exists()


def _run(rank: int, work: Work, folder: str, count: int, port: int) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(count),
        MASTER_ADDR='127.0.0.1',
        MASTER_PORT=str(port),
    )
    limit = timedelta(seconds=50 * PATIENCE)
    torch.distributed.init_process_group('gloo', timeout=limit)
    work(rank, Path(folder))
    (Path(folder) / f'done_{rank}').touch()
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of gloo abort some interpreters on their way out.
    os._exit(0)
