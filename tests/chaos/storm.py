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
from mmengine.registry import MODELS

import mmstable.demo  # noqa: F401  (registers the model)
import tests.chaos.tiny  # noqa: F401  (registers the other one)
from mmstable.checkpoint.audit import find_poison
from mmstable.checkpoint.loading import load_checkpoint
from mmstable.cli.config_file import load_config
from mmstable.cli.train import main

ROOT = Path(__file__).resolve().parents[2]
QUICKSTART = ROOT / 'configs/quickstart/digit-scenes_fcn_fp16.py'
# A poisoned buffer is noticed at the next snapshot.
SNAPSHOTS = 20
SIGNALS = ('SIGTERM', 'SIGUSR1', 'SIGINT')
# Those of this list that a process in the place of a child could not bear.
FATAL = ('SIGKILL',)


def quickstart(
    max_iters: int, dtype: str, faults: Iterable[dict], seed: int = 0
) -> Config:
    """The quick start on smaller pictures, with the guard and faults."""
    cfg = load_config(str(QUICKSTART))
    scale = dict(init_scale=64.0) if dtype == 'float16' else None
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
    cfg.default_hooks.guard.update(
        actions=dict(spike='skip'),
        snapshot_interval=SNAPSHOTS,
        lr_recovery=100,
        max_rollbacks=10**6,
    )
    cfg.custom_hooks.append(
        dict(
            type='mmstable.FaultInjectorHook',
            enabled=True,
            faults=list(faults),
        )
    )
    return cfg


def tiny(max_iters: int, faults: Iterable[dict]) -> Config:
    """The same around a model that trains in seconds."""
    cfg = quickstart(max_iters, 'float32', faults)
    cfg.custom_imports = dict(imports=['tests.chaos.tiny'])
    cfg.model = dict(type='TinyModel')
    data = cfg.train_dataloader
    data.batch_size, data.dataset = 8, dict(type='TinyData')
    data.collate_fn = dict(type='default_collate')
    # mmengine formats the whole config anew for every checkpoint.
    cfg.default_hooks.checkpoint.interval = max_iters // 2
    for name in ('val', 'test'):
        for part in ('dataloader', 'cfg', 'evaluator'):
            cfg[f'{name}_{part}'] = None
    return cfg


def random_faults(
    cfg: Config,
    rng: random.Random,
    first: int,
    slot: int = 50,
    signals: Iterable[str] = SIGNALS,
) -> list[dict[str, Any]]:
    """Faults of all kinds in turn, one in a slot, each in a random place.

    The last iterations of a slot stay free, so that what a fault has done is
    found, and told, before the next one.
    """
    last = cfg.train_cfg.max_iters - slot
    faults: list[dict[str, Any]] = []
    kinds: list[dict[str, Any]] = []
    for start in range(first, last, slot):
        if not kinds:
            kinds = _one_of_each(cfg, rng, list(signals))
            rng.shuffle(kinds)
        place = start + rng.randrange(slot - SNAPSHOTS - 5)
        faults.append({**kinds.pop(), 'at': place})
    return faults


def _one_of_each(
    cfg: Config, rng: random.Random, signals: list[str]
) -> list[dict[str, Any]]:
    model = MODELS.build(dict(cfg.model))
    params = [name for name, _ in model.named_parameters()]
    buffers = [
        name
        for name, buffer in model.named_buffers()
        if buffer.is_floating_point() and 'data_preprocessor' not in name
    ]
    # A thousandfold would overflow in fp16, and rightly be called that.
    factor = 30.0 if cfg.optim_wrapper.dtype == 'float16' else 1000.0
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


def run_here(folder: Path) -> int:
    """One attempt, in this process."""
    try:
        return main(arguments(folder))
    except (RuntimeError, KeyboardInterrupt):
        return 1


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
