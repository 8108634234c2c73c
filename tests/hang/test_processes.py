"""What can be seen of other processes and ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mmstable.dist.failure import RankStatus, behind
from mmstable.hang.report import (
    ask_for_stacks,
    describe_ranks,
)
from mmstable.io.process import state_of
from tests.patience import wait_until

linux = pytest.mark.skipif(
    not Path('/proc/self/stat').exists(), reason='needs /proc'
)


@linux
def test_states():
    assert state_of(os.getpid()) == 'running'
    process = subprocess.Popen(['sleep', '60'])
    try:
        wait_until(lambda: state_of(process.pid) == 'sleeping')
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: state_of(process.pid) == 'stopped')
        process.kill()
        # It is there until somebody asks how it ended.
        wait_until(lambda: state_of(process.pid) == 'dead')
    finally:
        process.kill()
        process.wait()
    assert state_of(process.pid) == 'dead'


@linux
def test_who_would_die_of_the_signal_is_not_asked(tmp_path, monkeypatch):
    # There may be a `py-spy`.
    monkeypatch.setenv('PATH', '')
    file = tmp_path / 'stacks.txt'
    file.touch()
    process = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1)
    try:
        assert ask_for_stacks([process.pid], file) == {process.pid: ''}
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


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
    assert clauses[0].startswith('no response from rank 4')
    assert clauses[1].startswith("rank 3 has been in 'step' for 9 s")
    assert clauses[2] == 'rank 0 waits for it in all_reduce'
    assert clauses[-1] == 'and 11 more ranks'
    assert len(clauses) == 10
