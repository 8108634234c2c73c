"""Signals to several ranks, and ranks that fail together."""

from __future__ import annotations

import signal
import time

import pytest

from tests.chaos.signal_runs import (
    TRAIN,
    Run,
    Variant,
    assert_same_state,
    free_port,
    prepare,
    reference,
    torchrun,
)

pytestmark = pytest.mark.dist


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """With the checkpoints of two ranks without faults."""
    folder = tmp_path_factory.mktemp('ranks')
    prepare(folder, Variant(workers=2, window=3, length=30))
    reference(folder, command=torchrun())
    return folder


def test_a_signal_to_torchrun_and_its_ranks(folder):
    run = Run(folder, 'torchrun', command=torchrun())
    run.wait_for_iteration(5)
    # torchrun sends it to its ranks once more.
    run.send(signal.SIGTERM)
    assert run.finish() != 0
    path = run.saved()
    assert_same_state(
        path, folder / 'reference' / path.name.replace('emergency_', '')
    )


def start_ranks(folder, work_dir, *options, count=2):
    """As Slurm starts them: nobody ends one when another has failed."""
    port = free_port()
    return [
        Run(
            folder,
            work_dir,
            *options,
            command=[*TRAIN, '--launcher', 'slurm'],
            SLURM_PROCID=rank,
            SLURM_NTASKS=count,
            SLURM_LOCALID=rank,
            SLURM_NODELIST='node7',
            MASTER_PORT=port,
            MASTER_ADDR='127.0.0.1',
        )
        for rank in range(count)
    ]


@pytest.mark.soak
def test_two_ranks_with_two_workers_each(folder):
    ranks = start_ranks(folder, 'slurm')
    ranks[0].wait_for_iteration(4)
    ranks[1].send(signal.SIGUSR1)
    ranks[0].wait_for(lambda line: 'SIGUSR1: saved' in line)
    # Sent to all processes of all ranks, though not at once.
    ranks[1].send(signal.SIGHUP)
    time.sleep(0.05)
    ranks[0].send(signal.SIGHUP)
    codes = [rank.finish() for rank in ranks]
    assert codes == [129, 129], ranks[0].text[-3000:]
    assert 'Traceback' not in ranks[0].text + ranks[1].text
    numbers = ranks[0].emergencies()
    assert len(numbers) == 2
    # The window after the signal at the latest.
    assert numbers[1] - numbers[0] <= 6
    for number in numbers:
        assert_same_state(
            ranks[0].work_dir / f'emergency_iter_{number}.pth',
            folder / 'reference' / f'iter_{number}.pth',
        )


@pytest.mark.parametrize(
    'launcher', ['torchrun', pytest.param('slurm', marks=pytest.mark.soak)]
)
@pytest.mark.soak
def test_all_ranks_fail_in_the_same_iteration(folder, launcher):
    # The first iteration of a window: none of its gradients are lost.
    options = ('--cfg-options', 'model.fault=forward:7')
    work_dir = f'all_{launcher}'
    if launcher == 'torchrun':
        run = Run(folder, work_dir, *options, command=torchrun(), PAUSE=0)
        assert run.finish() != 0
        text = run.text
    else:
        ranks = start_ranks(folder, work_dir, *options)
        codes = [rank.finish() for rank in ranks]
        text = ranks[0].text + ranks[1].text
        # The one that was first, and the one that was not.
        assert sorted(codes) == [1, 21], text[-5000:]
    saved = folder / work_dir / 'emergency_iter_6.pth'
    assert f'--resume-from {saved}' in text, text[-5000:]
    # Every rank has statistics of its own.
    is_first = 'are those of rank 1' not in text
    expected = folder / 'reference' / 'iter_6.pth'
    assert_same_state(saved, expected, statistics=is_first)
