"""What can be seen of other processes and ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mmstable.liveness import collectives, processes
from mmstable.liveness.collectives import Collectives, read_collectives
from mmstable.liveness.hang_text import describe_ranks
from mmstable.liveness.peers import RankStatus, behind
from mmstable.liveness.processes import ask_for_stacks, state_of

linux = pytest.mark.skipif(
    not Path('/proc/self/stat').exists(), reason='needs /proc'
)


def wait_for_state(pid: int, state: str) -> str:
    deadline = time.monotonic() + 10
    while state_of(pid) != state and time.monotonic() < deadline:
        time.sleep(0.02)
    return state_of(pid)


@linux
def test_states():
    assert state_of(os.getpid()) == 'running'
    process = subprocess.Popen(['sleep', '60'])
    try:
        assert wait_for_state(process.pid, 'sleeping') == 'sleeping'
        os.kill(process.pid, signal.SIGSTOP)
        assert wait_for_state(process.pid, 'stopped') == 'stopped'
        process.kill()
        # It is there until somebody asks how it ended.
        assert wait_for_state(process.pid, 'dead') == 'dead'
    finally:
        process.kill()
        process.wait()
    assert state_of(process.pid) == 'dead'


@linux
def test_who_would_die_of_the_signal_is_not_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(processes.shutil, 'which', lambda name: None)
    file = tmp_path / 'stacks.txt'
    file.touch()
    process = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1)
    try:
        assert ask_for_stacks([process.pid], file) == {process.pid: ''}
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


def recorded(**status) -> bytes:
    return json.dumps(
        {
            'entries': [{'profiling_name': 'nccl:all_reduce'}],
            'pg_status': {'0': status},
        }
    ).encode()


@pytest.mark.parametrize(
    ('record', 'expected'),
    [
        (
            recorded(
                last_enqueued_collective='4', last_completed_collective='3'
            ),
            Collectives(4, 'all_reduce'),
        ),
        (
            recorded(
                last_enqueued_collective='4', last_completed_collective='4'
            ),
            Collectives(4),
        ),
        (b'{}', Collectives()),
        (b'no JSON', Collectives()),
        (recorded(last_enqueued_collective='x'), Collectives()),
    ],
)
def test_the_flight_recorder(monkeypatch, record, expected):
    from torch._C import _distributed_c10d as recorder

    monkeypatch.setattr(
        recorder, '_dump_fr_trace_json', lambda: record, raising=False
    )
    monkeypatch.setattr(collectives, '_DUMPS', ('_dump_fr_trace_json',))
    assert read_collectives() == expected


def test_a_torch_without_a_flight_recorder(monkeypatch):
    monkeypatch.setattr(collectives, '_DUMPS', ('_no_such_function',))
    assert read_collectives() == Collectives()


def status(rank, iteration, begun=-1, waits_in='', phase='step'):
    return RankStatus(rank, iteration, phase, 9.0, '', begun, waits_in)


@pytest.mark.parametrize(
    ('statuses', 'expected'),
    [
        ([status(0, 5)], None),
        ([status(0, 5), status(1, 4)], 1),
        ([status(0, 5, 7), status(1, 5, 8)], 0),
        ([status(0, 5, 7), status(1, 5, 7)], None),
        # A torch that does not count the calls.
        ([status(0, 5, phase='backward'), status(1, 5, phase='data')], 1),
        ([status(0, 5, phase='backward'), status(1, 5, phase='hook')], None),
        ([status(0, 5), status(1, 5)], None),
    ],
)
def test_who_is_behind(statuses, expected):
    assert behind(statuses) == expected


def test_many_ranks_in_few_words():
    ranks = {n: status(n, 5, 7, 'all_reduce') for n in range(20)}
    ranks[3] = status(3, 4, 6)
    ranks[4] = None
    clauses = describe_ranks(ranks)
    assert clauses[0].startswith('rank 4 says nothing')
    assert clauses[1].startswith("rank 3 has been in 'step' for 9 s")
    assert clauses[2] == 'rank 0 waits for it in all_reduce'
    assert clauses[-1] == 'and 11 more ranks'
    assert len(clauses) == 10
