"""A training that is killed again and again loses nothing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mmstable.checkpoint.loading import load_checkpoint
from tests.patience import PATIENCE
from tests.toys import assert_same

ROOT = Path(__file__).resolve().parents[2]

MODULE = """
import random
import torch
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS


@DATASETS.register_module()
class ChaosData(torch.utils.data.Dataset):
    metainfo = dict()

    def __len__(self):
        return 37

    def __getitem__(self, index):
        # Augmented by all generators that a run can have.
        noise = random.random() + float(torch.rand(()))
        return dict(inputs=torch.full((8,), index / 37) + noise)


@MODELS.register_module()
class ChaosModel(BaseModel):
    def __init__(self):
        super().__init__()
        # Large enough for a kill to hit the middle of a save.
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 512),
            torch.nn.BatchNorm1d(512),
            torch.nn.Dropout(0.5),
            torch.nn.Linear(512, 512),
            torch.nn.Linear(512, 1),
        )

    def forward(self, inputs, mode='tensor'):
        out = self.layers(inputs)
        if mode == 'loss':
            return dict(loss=out.float().square().mean())
        return out
"""

CONFIG = """
_base_ = ['{configs}/default_runtime_fp16.py',
          '{configs}/schedules/schedule_20k_fp16.py']
custom_imports = dict(imports=['chaos_module'])
model = dict(type='ChaosModel')
train_dataloader = dict(
    batch_size=4, num_workers=0, collate_fn=dict(type='default_collate'),
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(type='ChaosData'))
train_cfg = dict(max_iters={iterations}, val_interval=10**6)
val_cfg = None
test_cfg = None
param_scheduler = [dict(type='PolyLR', by_epoch=False, begin=0)]
optim_wrapper = dict(
    loss_scale=dict(init_scale=64., growth_interval=7),
    optimizer=dict(lr=1e-3), clip_grad=None)
custom_hooks = [
    dict(type='mmstable.GradClipHook', method='percentile', warmup=3),
    dict(type='mmstable.GradNanLoggerHook'),
    dict(type='mmstable.EventLogHook'),
    dict(type='EMAHook'),
]
default_hooks = dict(
    checkpoint=dict(interval={interval}, max_keep_ckpts=2),
    logger=dict(interval=10))
randomness = dict(seed=3)
"""


def command(folder: Path, work_dir: str) -> list[str]:
    return [
        sys.executable,
        str(ROOT / 'tools/train.py'),
        str(folder / 'chaos_config.py'),
        '--work-dir',
        str(folder / work_dir),
        '--resume',
        'auto',
    ]


def start(folder: Path, work_dir: str) -> subprocess.Popen:
    return subprocess.Popen(
        command(folder, work_dir),
        cwd=folder,
        env={
            **os.environ,
            'PYTHONPATH': f'{folder}:{ROOT}',
            'OMP_NUM_THREADS': '1',
        },
        stdout=open(folder / f'{work_dir}.out', 'ab'),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def newest_iteration(folder: Path) -> int:
    names = [path.stem for path in folder.glob('iter_*.pth')]
    return max((int(name.split('_')[1]) for name in names), default=0)


def finish(folder: Path, work_dir: str) -> dict:
    process = start(folder, work_dir)
    assert process.wait(timeout=300) == 0, tail(folder, work_dir)
    last = newest_iteration(folder / work_dir)
    path = folder / work_dir / f'iter_{last}.pth'
    return load_checkpoint(path)


def tail(folder: Path, work_dir: str) -> str:
    return (folder / f'{work_dir}.out').read_text()[-3000:]


def kill_at_random(folder: Path, rng: random.Random) -> bool:
    """Start, wait for progress, kill; False if it was done before."""
    process = start(folder, 'killed')
    work_dir = folder / 'killed'
    before = newest_iteration(work_dir)
    deadline = time.monotonic() + 60 * PATIENCE
    # Most of the time it is saving, so any moment will do.
    while newest_iteration(work_dir) == before:
        if process.poll() is not None:
            assert process.returncode == 0, tail(folder, 'killed')
            return False
        assert time.monotonic() < deadline, tail(folder, 'killed')
        time.sleep(0.005)
    time.sleep(rng.random() * 0.3)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return True


def prepare(folder: Path, iterations: int, interval: int) -> None:
    (folder / 'chaos_module.py').write_text(MODULE)
    (folder / 'chaos_config.py').write_text(
        CONFIG.format(
            configs=ROOT / 'configs/_base_',
            iterations=iterations,
            interval=interval,
        )
    )


def run_chaos(folder: Path, iterations: int, kills: int) -> int:
    prepare(folder, iterations, interval=1)
    unbroken = finish(folder, 'unbroken')
    rng = random.Random(0)
    done = 0
    while done < kills and kill_at_random(folder, rng):
        done += 1
    killed = finish(folder, 'killed')
    for key in (
        'state_dict',
        'optimizer',
        'param_schedulers',
        'ema_state_dict',
    ):
        assert_same(killed[key], unbroken[key], key)
    ours, theirs = killed['mmstable'], unbroken['mmstable']
    for key in ('GradClipHook', 'GradNanLoggerHook'):
        assert_same(ours[key], theirs[key], key)
    assert killed['meta']['iter'] == unbroken['meta']['iter'] == iterations
    leftovers = [p for p in (folder / 'killed').iterdir() if 'tmp' in p.name]
    assert leftovers == []
    return done


@pytest.mark.soak
def test_a_few_kills(tmp_path):
    assert run_chaos(tmp_path, iterations=60, kills=3) == 3


@pytest.mark.soak
def test_fifty_kills(tmp_path):
    assert run_chaos(tmp_path, iterations=1500, kills=50) == 50
