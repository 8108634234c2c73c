"""SIGKILL at random moments of writes in the background loses nothing."""

from __future__ import annotations

import multiprocessing
import random
import socket
from pathlib import Path

import pytest

from mmstable.checkpoint.catalog import find_checkpoint
from mmstable.checkpoint.loading import load_checkpoint
from tests.chaos.background_kills import ITERATIONS, train
from tests.patience import PATIENCE
from tests.toys import assert_same

SECTIONS = ('state_dict', 'optimizer', 'ema_state_dict')
# Calls of one write, before and after each: about five writes.
MOMENTS = 100


def run(work_dir: Path, moment: int, ranks: int) -> bool:
    """Train, and end it at a moment; False if it was done before."""
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload(['tests.chaos.background_kills'])
    port = free_port() if ranks > 1 else 0
    processes = [
        context.Process(target=train, args=(str(work_dir), moment, rank, port))
        for rank in range(ranks)
    ]
    for one in processes:
        one.start()
    processes[0].join(120 * PATIENCE)
    is_killed = processes[0].exitcode != 0
    for one in processes:
        if is_killed:
            # It waits for a rank that is gone.
            one.kill()
        one.join(60 * PATIENCE)
    codes = [one.exitcode for one in processes]
    text = (work_dir / 'out0.txt').read_text()[-3000:]
    # Another rank may fail before it is killed: the first one is gone.
    assert codes[0] in (0, -9) and (is_killed or not any(codes)), text
    assert not is_killed or moment, text
    return is_killed


def free_port() -> int:
    with socket.socket() as one:
        one.bind(('127.0.0.1', 0))
        return one.getsockname()[1]


def newest(work_dir: Path) -> int:
    found = find_checkpoint(work_dir).found
    return 0 if found is None else found.iteration


def final(work_dir: Path) -> dict:
    return load_checkpoint(find_checkpoint(work_dir).found.path)


def kill_again_and_again(folder: Path, kills: int, ranks: int) -> None:
    assert not run(folder / 'whole', 0, ranks)
    whole = final(folder / 'whole')
    rng, done, number = random.Random(ranks), 0, 0
    while done < kills:
        number += 1
        work_dir, before = folder / f'killed{number}', 0
        while done < kills and run(work_dir, rng.randint(2, MOMENTS), ranks):
            done += 1
            assert newest(work_dir) >= before, 'a checkpoint is lost'
            before = newest(work_dir)
        assert not run(work_dir, 0, ranks)
        killed = final(work_dir)
        assert killed['meta']['iter'] == ITERATIONS
        for section in SECTIONS:
            assert_same(killed[section], whole[section], section)
        assert not list(work_dir.glob('.*tmp'))


def test_a_few_kills_of_the_writer(tmp_path):
    kill_again_and_again(tmp_path, kills=5, ranks=1)


@pytest.mark.soak
@pytest.mark.parametrize('ranks', [1, 2])
def test_a_hundred_kills_of_the_writer(tmp_path, ranks):
    kill_again_and_again(tmp_path, kills=100, ranks=ranks)
