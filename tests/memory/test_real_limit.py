"""A run whose memory is really limited ends like one whose is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.memory import limited_run

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(sys.platform != 'linux', reason='RLIMIT_AS')
def test_a_limited_run_ends_like_an_unlimited_one(tmp_path):
    free, limited = tmp_path / 'free', tmp_path / 'limited'
    limited_run.train(str(free), 0)
    environment = dict(
        os.environ,
        PYTHONPATH=str(ROOT),
        OMP_NUM_THREADS='1',
        # Memory that is freed goes back at once: the limit counts addresses.
        MALLOC_ARENA_MAX='1',
        MALLOC_MMAP_THRESHOLD_='65536',
        MALLOC_TRIM_THRESHOLD_='65536',
    )
    script = Path(limited_run.__file__)
    done = subprocess.run(
        [sys.executable, str(script), str(limited), '150'],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "DefaultCPUAllocator: can't allocate memory" in done.stdout + (
        done.stderr
    )
    (event,) = json.loads((limited / 'events.json').read_text())
    assert event[0] == 2 and event[1].startswith('chunk/')
    assert event[2] == 'rounding'
    mine = torch.load(limited / 'weights.pt')
    other = torch.load(free / 'weights.pt')
    assert float((mine - other).norm() / other.norm()) < 1e-5
