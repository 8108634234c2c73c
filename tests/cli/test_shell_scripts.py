"""tools/*.sh: training with several processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.runs import ROOT, iterations


@pytest.mark.parametrize('script', ['dist_train.sh', 'slurm_train.sh'])
def test_shell_script_asks_for_its_arguments(script: str) -> None:
    done = subprocess.run(
        [str(ROOT / 'tools' / script)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert 'usage: ' in done.stderr


@pytest.mark.dist
@pytest.mark.soak
def test_two_processes_train_on_the_cpu(project: Path, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    done = subprocess.run(
        [str(ROOT / 'tools/dist_train.sh'), 'config.py', '2']
        + ['--work-dir', str(tmp_path / 'a b')],
        cwd=project,
        env={
            **os.environ,
            'PYTHON': sys.executable,
            'PYTHONPATH': str(ROOT),
            'PORT': str(port),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert iterations(tmp_path / 'a b') == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ('device', 'gres'), [('gpu', ['--gres=gpu:2']), ('cpu', [])]
)
def test_slurm_is_asked_for_gpus_where_they_are_wanted(tmp_path, device, gres):
    fake = tmp_path / 'srun'
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    done = subprocess.run(
        [ROOT / 'tools/slurm_train.sh', 'part', 'job', 'c.py', '--amp'],
        env={
            'PATH': f'{tmp_path}:{os.environ["PATH"]}',
            'GPUS': '2',
            'DEVICE': device,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.split()
    assert [word for word in words if 'gres' in word] == gres
    assert words[-4:] == ['c.py', '--launcher', 'slurm', '--amp']
    assert '--ntasks=2' in words
