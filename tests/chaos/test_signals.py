"""Signals to ``mmstable train``: nothing is lost, and all is exact."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mmstable.checkpoint.signals import ask_to_save
from tests.chaos.signal_runs import (
    Run,
    Variant,
    assert_same_state,
    prepare,
    reference,
    storm,
)
from tests.patience import wait_until

VARIANTS = [
    Variant(loop, workers, window)
    for loop in ('iter', 'epoch')
    for workers in (0, 2)
    for window in (1, 3)
]


@pytest.mark.parametrize(
    'variant',
    [
        Variant('iter', 2, 3, length=39),
        Variant('epoch', 2, length=20),
    ],
    ids=str,
)
@pytest.mark.soak
def test_signals_to_the_group_lose_nothing(tmp_path, variant):
    storm(tmp_path, variant, signals=2, rng=random.Random(str(variant)))


def test_a_signal_that_comes_twice_is_one(tmp_path):
    prepare(tmp_path, Variant())
    run = Run(tmp_path, 'run')
    run.wait_for_iteration(5)
    run.send(signal.SIGTERM)
    time.sleep(0.2)
    run.send(signal.SIGTERM)
    assert run.finish() == 143, run.text[-3000:]
    assert run.emergencies()
    assert 'stopped by SIGTERM: saved' in run.text


def children(pid: int) -> list[int]:
    found = []
    for path in Path('/proc').glob('[0-9]*/stat'):
        try:
            fields = path.read_text().rpartition(')')[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != 'Z':
            found.append(int(path.parent.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        text = Path(f'/proc/{pid}/stat').read_text()
    except OSError:
        return False
    return text.rpartition(')')[2].split()[0] != 'Z'


@pytest.mark.soak
def test_workers_end_with_the_main_process(tmp_path):
    prepare(tmp_path, Variant(workers=2, length=10**4))
    run = Run(tmp_path, 'run')
    run.wait_for_iteration(3)
    workers = children(run.process.pid)
    assert len(workers) == 2
    try:
        for pid in workers:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
                os.kill(pid, number)
        time.sleep(0.3)
        assert all(map(is_alive, workers))
        os.kill(run.process.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, workers)))
    finally:
        run.kill()
        run.process.communicate()


@pytest.mark.soak
def test_a_worker_that_dies_harms_no_step_and_no_save(tmp_path):
    prepare(tmp_path, Variant(workers=2))
    expected = reference(tmp_path)
    run = Run(tmp_path, 'run')
    run.wait_for_iteration(4)
    os.kill(children(run.process.pid)[-1], signal.SIGKILL)
    assert run.finish() == 1, run.text[-3000:]
    # Whatever torch has to say of it: its last batches are lost, too.
    assert 'The state before it is saved in' in run.text
    (done,) = run.emergencies()
    assert_same_state(
        run.work_dir / f'emergency_iter_{done}.pth',
        expected / f'iter_{done}.pth',
    )


@pytest.fixture(scope='module')
def plain(tmp_path_factory):
    """A folder with the checkpoints of a run without faults."""
    folder = tmp_path_factory.mktemp('plain')
    prepare(folder, Variant(length=12))
    reference(folder)
    return folder


@pytest.mark.parametrize(
    'stage', ['backward', pytest.param('forward', marks=pytest.mark.soak)]
)
def test_an_exception_leaves_the_state_before_it(plain, stage):
    options = ('--cfg-options', f'model.fault={stage}:5')
    run = Run(plain, stage, *options, PAUSE=0)
    assert run.finish() == 1
    assert 'The state before it is saved in' in run.text
    assert_same_state(
        run.work_dir / 'emergency_iter_4.pth',
        plain / 'reference' / 'iter_4.pth',
    )


@pytest.mark.soak
def test_an_exception_without_a_copy_of_the_buffers_says_so(plain):
    run = Run(
        plain,
        'unprotected',
        '--cfg-options',
        'model.fault=forward:5',
        'optim_wrapper.protect_buffers=False',
        PAUSE=0,
    )
    assert run.finish() == 1
    assert 'it is not exactly the one before: buffers' in run.text


def test_half_updated_weights_are_not_saved(plain):
    run = Run(
        plain,
        'half',
        '--cfg-options',
        'optim_wrapper.optimizer.type=HalfAdamW',
        'default_hooks.checkpoint.interval=3',
        PAUSE=0,
    )
    assert run.finish() == 1
    assert not run.emergencies()
    assert 'while the weights were being updated' in run.text
    path = run.work_dir / 'iter_3.pth'
    assert f' --resume-from {path}' in run.text


def test_sigusr1_saves_and_sighup_stops(plain):
    run = Run(plain, 'asked', '--cfg-options', 'train_cfg.max_iters=60')
    run.wait_for(lambda line: True)
    # Nothing is to be saved yet, and nothing lost.
    run.send(signal.SIGUSR1)
    run.wait_for_iteration(3)
    run.send(signal.SIGUSR1)
    run.wait_for(lambda line: 'SIGUSR1: saved' in line)
    run.send(signal.SIGHUP)
    assert run.finish() == 129, run.text[-3000:]
    assert len(run.emergencies()) == 2


# Python runs a file of this name before anything else.
ASKS_EARLY = """
import os, signal, sys

class Asks:
    def find_spec(self, name, path=None, target=None):
        if name == 'torch':
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGUSR1)

sys.meta_path.insert(0, Asks())
"""


@pytest.mark.skipif(
    sys.version_info < (3, 10),
    reason='Python 3.9 imports a package before it says that it runs it',
)
@pytest.mark.parametrize('command', [['train'], ['dist-train', '1']])
def test_sigusr1_harms_no_import(tmp_path, command):
    (tmp_path / 'sitecustomize.py').write_text(ASKS_EARLY)
    name, *rest = command
    words = [sys.executable, '-m', 'mmstable', name, 'none.py', *rest]
    run = Run(tmp_path, 'run', command=words, imports=True)
    assert run.finish() == 2, run.text
    assert 'no config file' in run.text


def test_a_process_that_does_not_listen_yet_is_not_asked_to_save():
    script = (
        'import signal, sys, time; print(1, flush=True); sys.stdin.readline();'
        'signal.signal(signal.SIGUSR1, lambda *a: sys.exit(5));'
        'print(2, flush=True); [time.sleep(0.05) for _ in range(600)]'
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, '-c', script], stdin=pipe, stdout=pipe
    ) as one:
        one.stdout.readline()
        ask_to_save(one.pid)
        one.stdin.write(b'\n')
        one.stdin.flush()
        assert one.stdout.readline() == b'2\n'
        ask_to_save(one.pid)
        assert one.wait(timeout=30) == 5
    ask_to_save(one.pid)


@pytest.mark.soak
@pytest.mark.parametrize('seed', range(2))
@pytest.mark.parametrize('variant', VARIANTS, ids=str)
def test_two_hundred_signals(tmp_path, variant, seed):
    """8 variants, 2 seeds, 13 signals: 10 minutes with `-n 2`, 2 cores."""
    storm(tmp_path, variant, signals=13, rng=random.Random(seed))
