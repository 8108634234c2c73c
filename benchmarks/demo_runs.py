"""The two runs of the demo: stock mmengine, and ``mmstable train``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from survival_runs import SCALE, Result, quick_config, run_config

ROOT = Path(__file__).resolve().parents[1]
# Seconds without a line in the log after which a person would give up.
PATIENCE = 20.0
_WEIGHT = 'encoder.1.conv.weight'
_BUFFER = 'encoder.1.bn.running_var'
# In the order in which they come.
FAULTS: dict[str, dict[str, Any]] = {
    'Inf gradient (overflow)': dict(kind='inf_grad', param=_WEIGHT),
    'NaN gradient': dict(kind='nan_grad', param='head.weight'),
    'process killed (SIGKILL)': dict(kind='signal', signal='SIGKILL'),
    'NaN loss': dict(kind='nan_loss'),
    'bad data (Inf in a picture)': dict(kind='inf_input'),
    'loss x 1000 (spike)': dict(kind='spike_loss'),
    'out of memory': dict(kind='oom'),
    'hang': dict(kind='hang', seconds=3600.0),
    'NaN weight': dict(kind='nan_weight', param=_WEIGHT),
    'NaN running variance': dict(kind='nan_buffer', buffer=_BUFFER),
    'exception': dict(kind='exception'),
}
MOST_RESTARTS = 6


def schedule(iterations: int) -> dict[str, int]:
    """The iteration of every fault, when all of them are in one run."""
    first, gap = iterations // 6, iterations * 3 // 4 // len(FAULTS)
    return {name: first + gap * i for i, name in enumerate(FAULTS)}


def demo_config(iterations: int) -> Config:
    """The quick start as stock mmengine trains it, on small pictures."""
    cfg = quick_config('stock fp16', iterations)
    cfg.model.update(channels=(16, 32, 64))
    cfg.train_dataloader.batch_size = 8
    cfg.train_dataloader.dataset.update(size=32, num_scenes=8 * iterations)
    cfg.val_dataloader.dataset.size = 32
    return cfg


def clear(*folders: Path) -> None:
    """Remove what an earlier demo has left; the folder around it may be any.

    Args:
        *folders (Path): The folders that only the demo makes.
    """
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def run_stock(folder: Path, iterations: int, name: str | None) -> Result:
    """Train with stock mmengine, with one fault or none."""
    at = iterations // 2 + 3
    faults = [dict(FAULTS[name], at=at)] if name else []
    cfg = demo_config(iterations)
    return run_config(folder, 'stock fp16', cfg, faults, PATIENCE)


def write_drill(path: Path, iterations: int) -> None:
    """The config of stock mmengine with all faults; nothing protects it."""
    cfg = demo_config(iterations)
    clip = cfg.optim_wrapper.clip_grad
    cfg.optim_wrapper = dict(
        type='AmpOptimWrapper',
        dtype='float16',
        loss_scale=dict(init_scale=SCALE),
        optimizer=cfg.optim_wrapper.optimizer,
        clip_grad=clip,
    )
    cfg.custom_hooks = [
        dict(
            type='mmstable.FaultInjectorHook',
            enabled=True,
            faults=[
                dict(FAULTS[name], at=at)
                for name, at in schedule(iterations).items()
            ],
        ),
        # The default of five minutes is too long for a demo.
        dict(type='mmstable.HangWatchdogHook', min_limit=8.0),
    ]
    # The default of 50 iterations would be an eighth of so short a run.
    cfg.default_hooks.guard = dict(
        type='mmstable.DivergenceGuardHook', snapshot_interval=10
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    cfg.dump(path)


def start_protected(config: Path, folder: Path) -> subprocess.Popen[bytes]:
    """Start ``mmstable train`` on a config; its words go to a file."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / 'output.txt', 'wb') as out:
        return subprocess.Popen(
            protected_command(config, folder),
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=child_environment(),
        )


def protected_command(config: Path, folder: Path) -> Sequence[str]:
    """The command line of the protected run."""
    return [
        *(sys.executable, '-m', 'mmstable', 'train', str(config)),
        *('--work-dir', str(folder), '--max-restarts', str(MOST_RESTARTS)),
    ]


def child_environment() -> dict[str, str]:
    """One core for each of the two runs, and this mmstable."""
    before = os.environ.get('PYTHONPATH')
    paths = [str(ROOT), *([before] if before else [])]
    return {
        **os.environ,
        'OMP_NUM_THREADS': '1',
        'PYTHONPATH': os.pathsep.join(paths),
    }
