"""A training that fails in every way, and is started again each time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmstable.checkpoint.loading import load_checkpoint
from mmstable.report import Hang, RunStart, read_events
from tests.chaos.test_sigkill import ROOT, prepare
from tests.toys import assert_same

ITERATIONS = 40
HOOKS = """
custom_hooks += [
    dict(type='mmstable.EmergencyCheckpointHook'),
    dict(type='mmstable.HangWatchdogHook', min_limit=3.0),
]
"""
FAULTS = """
custom_hooks += [
    dict(type='mmstable.FaultInjectorHook', enabled=True, faults=[
        dict(kind='exception', at=9),
        dict(kind='hang', at=17, seconds=600.0),
        dict(kind='signal', at=24, signal='SIGKILL'),
    ]),
]
"""


def train(folder: Path, work_dir: str, *options: str) -> str:
    """Train from a config of that name; all that is printed."""
    done = subprocess.run(
        [
            *(sys.executable, '-m', 'mmstable', 'train'),
            str(folder / f'{work_dir}.py'),
            *('--work-dir', str(folder / work_dir), *options),
        ],
        cwd=folder,
        env={
            **os.environ,
            'PYTHONPATH': f'{folder}:{ROOT}',
            'OMP_NUM_THREADS': '1',
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def write_config(folder: Path, name: str, more: str) -> None:
    text = (folder / 'chaos_config.py').read_text()
    (folder / f'{name}.py').write_text(text + more)


@pytest.mark.soak
def test_a_supervised_run_ends_as_an_unbroken_one(tmp_path):
    prepare(tmp_path, ITERATIONS, interval=5)
    write_config(tmp_path, 'unbroken', HOOKS)
    write_config(tmp_path, 'broken', HOOKS + FAULTS)
    train(tmp_path, 'unbroken')
    printed = train(tmp_path, 'broken', '--max-restarts', '5')
    for line in (
        'ended: exit code 1. Restart 1 of 5 in 1 s, from emergency_iter_8.pth',
        'ended: it hung (exit code 23). Restart 2 of 5 in 1 s, from '
        'emergency_iter_16.pth',
        'ended: killed by SIGKILL (out of memory? see `dmesg`). Restart 3 of',
    ):
        assert line in printed, printed[-5000:]
    last = f'iter_{ITERATIONS}.pth'
    broken = load_checkpoint(tmp_path / 'broken' / last)
    unbroken = load_checkpoint(tmp_path / 'unbroken' / last)
    for key in ('state_dict', 'optimizer', 'param_schedulers'):
        assert_same(broken[key], unbroken[key], key)
    files = sorted(tmp_path.glob('broken/*/stability/events.jsonl'))
    events = [event for path in files for event in read_events(path)]
    starts = [e for e in events if isinstance(e, RunStart)]
    assert [start.restarts for start in starts] == [0, 1, 2, 3]
    assert starts[2].restarted_after == 'it hung (exit code 23)'
    (hang,) = (e for e in events if isinstance(e, Hang))
    assert (hang.phase, hang.iteration, hang.action) == ('forward', 16, 'exit')
