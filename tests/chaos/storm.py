"""A small run of the quick start, and random faults for it."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mmengine.config import Config
from torch.nn import Module

from mmstable.checkpoint.audit import find_poison
from mmstable.checkpoint.loading import load_checkpoint
from mmstable.cli.config import load_config

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / 'configs/quickstart/digit-scenes_fcn_fp16.py'
# A poisoned buffer is noticed at the next snapshot.
SNAPSHOTS = 20
SIGNALS = ('SIGTERM', 'SIGHUP', 'SIGINT')
GUARD = dict(
    actions=dict(spike='skip'),
    snapshot_interval=SNAPSHOTS,
    lr_recovery=100,
    max_rollbacks=10**6,
)


def quickstart(max_iters: int, dtype: str, seed: int = 0) -> Config:
    """The quick start on smaller pictures; its last hook is the injector."""
    cfg = load_config(str(QUICKSTART))
    scale = dict(init_scale=16.0) if dtype == 'float16' else None
    cfg.optim_wrapper.update(dtype=dtype, loss_scale=scale)
    cfg.model.update(channels=(8, 16, 32), context_convs=1)
    cfg.train_cfg.update(max_iters=max_iters, val_interval=max_iters)
    warmup, decay = cfg.param_scheduler
    warmup.end = decay.begin = max_iters // 10
    cfg.train_dataloader.batch_size = 4
    cfg.train_dataloader.dataset.update(size=48, num_scenes=4 * max_iters)
    cfg.val_dataloader.dataset.update(size=48, num_scenes=200)
    cfg.default_hooks.checkpoint.interval = max(max_iters // 20, 10)
    cfg.randomness = dict(seed=seed)
    cfg.default_hooks.guard.update(GUARD)
    cfg.custom_hooks.append(
        dict(
            type='mmstable.FaultInjectorHook',
            enabled=True,
            faults=[],
        )
    )
    return cfg


def random_faults(
    model: Module,
    rng: random.Random,
    iterations: range,
    factor: float = 1000.0,
    signals: Iterable[str] = SIGNALS,
) -> list[dict[str, Any]]:
    """Faults of all kinds in turn, one in a slot, each in a random place.

    The last iterations of a slot stay free, so that what a fault has done is
    found, and told, before the next one.

    Args:
        model: What to break.
        rng: Chooses.
        iterations: Where the slots begin.
        factor: Of the spikes.
        signals: Those to choose from.
    """
    faults: list[dict[str, Any]] = []
    kinds: list[dict[str, Any]] = []
    for start in iterations:
        if not kinds:
            kinds = _one_of_each(model, rng, factor, list(signals))
            rng.shuffle(kinds)
        place = start + rng.randrange(iterations.step - SNAPSHOTS - 5)
        faults.append({**kinds.pop(), 'at': place})
    return faults


def _one_of_each(
    model: Module, rng: random.Random, factor: float, signals: list[str]
) -> list[dict[str, Any]]:
    params = [name for name, _ in model.named_parameters()]
    buffers = [
        name
        for name, buffer in model.named_buffers()
        if buffer.is_floating_point() and 'data_preprocessor' not in name
    ]
    kinds: list[dict[str, Any]] = [
        dict(kind='spike_loss', factor=factor),
        dict(kind='spike_grad', factor=factor),
        dict(kind='oom'),
        dict(kind='hang', seconds=0.05),
        dict(kind='exception', message=f'number {rng.random()}'),
        dict(kind='signal', signal=rng.choice(signals)),
    ]
    for value in ('nan', 'inf'):
        entry = rng.choice(['exp_avg', 'exp_avg_sq'])
        kinds += [
            dict(kind=f'{value}_grad', param=rng.choice(params)),
            dict(kind=f'{value}_loss'),
            dict(kind=f'{value}_input'),
            dict(kind=f'{value}_weight', param=rng.choice(params)),
            dict(kind=f'{value}_buffer', buffer=rng.choice(buffers)),
            dict(kind=f'{value}_state', param=rng.choice(params), entry=entry),
        ]
    return kinds


def write_config(folder: Path, cfg: Config) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    cfg.dump(folder / 'storm_config.py')


def arguments(folder: Path) -> list[str]:
    return [
        str(folder / 'storm_config.py'),
        *('--work-dir', str(folder / 'work')),
        *('--resume', 'auto'),
    ]


def run_in_child(folder: Path) -> int:
    """One attempt, in a process that may be killed."""
    with open(folder / 'out.txt', 'ab') as out:
        return subprocess.run(
            [
                sys.executable,
                str(ROOT / 'tools/train.py'),
                *arguments(folder),
            ],
            env={
                **os.environ,
                'PYTHONPATH': str(ROOT),
                'OMP_NUM_THREADS': '1',
            },
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=1200,
        ).returncode


def supervise(folder: Path, run: Any, most: int) -> list[int]:
    """Start a run again until it is done, as a scheduler would.

    Returns:
        list[int]: The exit codes.
    """
    codes: list[int] = []
    while not codes or codes[-1] != 0:
        assert len(codes) <= most, f'it does not end: {codes}'
        codes.append(run(folder))
        assert codes[-1] != 2, 'the config is wrong'
    return codes


def final_miou(folder: Path) -> float:
    logs = sorted((folder / 'work').rglob('*.log'))
    text = ''.join(path.read_text() for path in logs)
    return float(re.findall(r'seg/mIoU: ([\d.]+|nan)', text)[-1])


def poison_at_the_end(folder: Path) -> list[Any]:
    paths = (folder / 'work').glob('iter_*.pth')
    last = max(paths, key=lambda path: int(path.stem.split('_')[1]))
    return find_poison(load_checkpoint(last))
