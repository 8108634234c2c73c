"""The event files of a run with two processes."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta

import pytest
import torch
from mmengine.model import MMDistributedDataParallel
from torch import multiprocessing

from mmstable.hooks.event_log_hook import EventLogHook
from mmstable.report import RunEnd, RunStart, StepFault, read_events
from tests.toys import Sabotage, ToyModel, toy_runner

pytestmark = pytest.mark.dist


def run_rank(rank: int, work_dir: str, port: int) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE='2',
        MASTER_ADDR='127.0.0.1',
        MASTER_PORT=str(port),
    )
    torch.distributed.init_process_group('gloo', timeout=timedelta(seconds=50))
    bad_loss = Sabotage(loss=[2] if rank == 1 else [])
    toy_runner(
        work_dir,
        hooks=(EventLogHook(interval=2), bad_loss),
        max_iters=4,
        launcher='pytorch',
        # mmengine itself would ask for a GPU.
        model=MMDistributedDataParallel(ToyModel()),
    ).train()
    torch.distributed.destroy_process_group()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


def train_on_two_ranks(work_dir: str) -> None:
    context = multiprocessing.start_processes(
        run_rank,
        args=(work_dir, free_port()),
        nprocs=2,
        join=False,
        start_method='spawn',
    )
    deadline = time.monotonic() + 60
    try:
        while not context.join(timeout=1):
            assert time.monotonic() < deadline, 'the ranks hang'
    finally:
        for process in context.processes:
            process.kill()


def test_other_ranks_write_their_faults_only(tmp_path):
    train_on_two_ranks(str(tmp_path))
    files = {path.name: path for path in tmp_path.glob('*/stability/*')}
    assert sorted(files) == ['events.jsonl', 'events.rank1.jsonl']
    first = list(read_events(files['events.jsonl']))
    second = list(read_events(files['events.rank1.jsonl']))
    assert first[0].world_size == 2
    assert isinstance(first[-1], RunEnd)
    assert [type(event) for event in second] == [RunStart, StepFault]
    assert (second[0].rank, second[1].rank) == (1, 1)
    seen = [event for event in first if isinstance(event, StepFault)]
    assert [event.iteration for event in seen] == [2]
    assert second[1].iteration == 2
    # The loss tells which rank it came from; the gradients are shared.
    assert seen[0].fault == second[1].fault == 'nan_loss'
    assert seen[0].losses['loss'] < 100
    assert not second[1].losses['loss'] < 100
