"""How schedulers end a job, and what is left of it.

The signals of each, in its order. Times are shorter than theirs, but longer
than an iteration, and the last signal is always the kill.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.chaos.signal_runs import (
    Run,
    Variant,
    assert_same_state,
    prepare,
    reference,
)

# Seconds before each signal, to which processes it goes (the group of the
# job, or the program alone), and the exit code.
SEQUENCES = {
    'Slurm: scancel or the time limit, KillWait 30 s': (
        [(0, 'SIGCONT', True), (0, 'SIGTERM', True), (20, 'SIGKILL', True)],
        143,
    ),
    'Slurm: --signal=USR2@120': (
        [(0, 'SIGUSR2', True), (20, 'SIGTERM', True)],
        140,
    ),
    'LSF: bkill, JOB_TERMINATE_INTERVAL 10 s': (
        [
            (0, 'SIGINT', True),
            (2, 'SIGTERM', True),
            (20, 'SIGKILL', True),
        ],
        130,
    ),
    'SGE: -notify before a kill': (
        [(0, 'SIGUSR2', True), (20, 'SIGKILL', True)],
        140,
    ),
    'SGE: soft limit s_cpu or s_rt': (
        [(0, 'SIGXCPU', False), (20, 'SIGKILL', True)],
        152,
    ),
    'submitit: timeout or preemption': (
        [(0, 'SIGCONT', False), (0, 'SIGUSR2', False), (20, 'SIGTERM', True)],
        140,
    ),
    'Kubernetes: terminationGracePeriodSeconds 30': (
        [(0, 'SIGTERM', False), (20, 'SIGKILL', True)],
        143,
    ),
}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('schedulers')
    prepare(folder, Variant(length=20))
    reference(folder)
    return folder


@pytest.mark.soak
@pytest.mark.parametrize('name', SEQUENCES)
def test_the_run_is_saved_before_it_is_killed(folder: Path, name: str) -> None:
    signals, code = SEQUENCES[name]
    # The iteration in which the first signal comes lasts for seconds.
    run = Run(folder, name.replace('/', '_').replace(' ', '_'), PAUSE=3)
    run.wait_for_iteration(2)
    for seconds, number, to_group in signals:
        end = time.monotonic() + seconds
        while time.monotonic() < end and run.process.poll() is None:
            time.sleep(0.1)
        if run.process.poll() is None:
            run.send(getattr(signal, number), to_group)
    assert run.finish() == code, run.text[-3000:]
    (done,) = run.emergencies()
    assert_same_state(run.saved(), folder / f'reference/iter_{done}.pth')


@pytest.mark.soak
def test_a_snapshot_is_saved_if_the_iteration_does_not_end(
    folder: Path,
) -> None:
    run = Run(
        folder,
        'stuck',
        '--cfg-options',
        'default_hooks.guard.snapshot_interval=1',
        PAUSE='0.01 if self.calls < 5 else 60',
    )
    run.wait_for_iteration(4)
    time.sleep(1)
    begin = time.monotonic()
    run.send(signal.SIGTERM)
    assert run.finish() == 143, run.text[-3000:]
    assert time.monotonic() - begin < 60
    (done,) = run.emergencies()
    assert done >= 3
    assert 'The newest snapshot in host memory' in run.text
    assert_same_state(
        run.work_dir / f'emergency_iter_{done}.pth',
        folder / f'reference/iter_{done}.pth',
    )


@pytest.mark.soak
def test_the_time_limit(folder: Path) -> None:
    run = Run(folder, 'limit', '--max-time', '25s', PAUSE=2)
    assert run.finish(120) == 25, run.text[-3000:]
    (done,) = run.emergencies()
    assert done < 20
    assert 'stopped by the time limit: saved' in run.text
    again = Run(folder, 'limit', '--resume', PAUSE=0)
    assert again.finish() == 0, again.text[-3000:]
    assert_same_state(
        folder / 'limit/iter_20.pth', folder / 'reference/iter_20.pth'
    )


@pytest.mark.soak
def test_ctrl_c_twice_on_a_terminal_ends_at_once(folder: Path) -> None:
    import pty
    import subprocess
    import sys

    from tests.chaos.signal_runs import environment

    master, terminal = pty.openpty()
    log = folder / 'terminal.log'
    with log.open('w') as output:
        process = subprocess.Popen(
            [sys.executable, '-m', 'mmstable', 'train', 'config.py']
            + ['--work-dir', 'terminal'],
            cwd=folder,
            env=environment(folder, PAUSE=5),
            stdin=terminal,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while '(train) [ 1/20]' not in log.read_text():
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=4) == 130
        assert not list((folder / 'terminal').glob('emergency*'))
    finally:
        process.kill()
        os.close(master)
        os.close(terminal)
