"""Runs of ``mmstable train`` that get signals, and what they left behind."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from mmstable.checkpoint.loading import load_checkpoint
from tests.preloaded import Preloaded
from tests.toys import assert_same

ROOT = Path(__file__).resolve().parents[2]

MODULE = """
import os, time
import torch
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, METRICS, MODELS, OPTIMIZERS


@DATASETS.register_module()
class SignalData(torch.utils.data.Dataset):
    metainfo = dict()

    def __len__(self):
        return 30

    def __getitem__(self, index):
        return dict(inputs=torch.full((8,), index / 30))


@METRICS.register_module()
class SignalMetric(BaseMetric):
    def process(self, data_batch, data_samples):
        self.results.append(0)

    def compute_metrics(self, results):
        return dict(x=0.0)


@MODELS.register_module()
class SignalModel(BaseModel):
    def __init__(self, fault=''):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 64), torch.nn.BatchNorm1d(64),
            torch.nn.Dropout(0.5), torch.nn.Linear(64, 1))
        self.fault, self.calls = fault, 0

    def forward(self, inputs, mode='tensor'):
        out = self.layers(inputs)
        time.sleep(eval(os.environ.get('PAUSE', '0.01')))
        if mode != 'loss':
            print('validating', flush=True)
            return list(out)
        self.calls += 1
        if self.fault == f'forward:{self.calls}':
            raise ValueError('a broken sample')
        if self.fault == f'backward:{self.calls}':
            out.register_hook(fail)
        return dict(loss=out.float().square().mean())


def fail(*args):
    raise ValueError('a broken sample')


class HalfAdamW(torch.optim.AdamW):
    # Fails when it has updated one half of the weights.
    def step(self, closure=None):
        self.calls = getattr(self, 'calls', 0) + 1
        if self.calls != 5:
            return super().step(closure)
        group, = self.param_groups
        params = group['params']
        group['params'] = params[:2]
        super().step(closure)
        group['params'] = params
        raise ValueError('a broken optimizer')


OPTIMIZERS.register_module(module=HalfAdamW)
"""

CONFIG = """
_base_ = ['{root}/configs/_base_/default_runtime.py']
custom_imports = dict(imports=['signal_module'])
model = dict(type='SignalModel')
loader = dict(
    batch_size=3, num_workers={workers},
    dataset=dict(type='SignalData'),
    collate_fn=dict(type='default_collate'))
train_dataloader = dict(
    **loader, sampler=dict(type='{sampler}', shuffle=True))
val_dataloader = dict(
    **loader, sampler=dict(type='DefaultSampler', shuffle=False))
val_evaluator = dict(type='SignalMetric')
val_cfg = dict(type='ValLoop')
train_cfg = {loop}
param_scheduler = [dict(type='PolyLR', by_epoch=False, begin=0)]
optim_wrapper = dict(
    type='mmstable.SafeOptimWrapper', accumulative_counts={window},
    optimizer=dict(type='AdamW', lr=1e-3))
default_hooks = dict(
    checkpoint=dict(type='mmstable.SafeCheckpointHook', by_epoch=False,
                    interval=10**6),
    logger=dict(type='LoggerHook', interval=1),
    param_scheduler=dict(type='mmstable.SafeParamSchedulerHook'))
log_processor = dict(by_epoch={by_epoch})
randomness = dict(seed=3, diff_rank_seed=True)
"""


@dataclass(frozen=True)
class Variant:
    """A kind of run."""

    loop: str = 'iter'
    workers: int = 0
    window: int = 1
    length: int = 40

    def __str__(self) -> str:
        return f'{self.loop}_{self.workers}workers_{self.window}window'

    def config(self) -> str:
        """The config file."""
        loop: dict[str, Any] = dict(
            type='mmstable.SafeIterBasedTrainLoop',
            max_iters=self.length,
            val_interval=9,
        )
        if self.loop == 'epoch':
            loop = dict(
                type='mmstable.SafeEpochBasedTrainLoop',
                max_epochs=self.length // 10,
                val_interval=1,
            )
        return CONFIG.format(
            root=ROOT,
            workers=self.workers,
            window=self.window,
            loop=loop,
            by_epoch=self.loop == 'epoch',
            sampler='InfiniteSampler'
            if self.loop == 'iter'
            else 'DefaultSampler',
        )


def prepare(folder: Path, variant: Variant) -> None:
    (folder / 'signal_module.py').write_text(MODULE)
    (folder / 'config.py').write_text(variant.config())


def environment(folder: Path, **variables: object) -> dict[str, str]:
    return {
        **os.environ,
        'PYTHONPATH': f'{folder}:{ROOT}',
        'OMP_NUM_THREADS': '1',
        **{key: str(value) for key, value in variables.items()},
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


TRAIN = [sys.executable, '-m', 'mmstable', 'train', 'config.py']


def torchrun(ranks: int = 2) -> list[str]:
    return [
        sys.executable,
        '-m',
        'torch.distributed.run',
        f'--nproc_per_node={ranks}',
        f'--master_port={free_port()}',
        '-m',
        *TRAIN[2:],
        '--launcher',
        'pytorch',
    ]


class Run:
    """A run in a process group of its own.

    Args:
        folder: What :func:`prepare` has filled.
        work_dir: Name of its work directory.
        options: More words of its command line.
        command: The words before them.
        imports: Whether it is about what happens while it imports torch.
        variables: More environment variables.
    """

    def __init__(
        self,
        folder: Path,
        work_dir: str,
        *options: str,
        command: list[str] | None = None,
        imports: bool = False,
        **variables: object,
    ) -> None:
        self.work_dir = folder / work_dir
        words = [*(command or TRAIN), '--work-dir', work_dir, *options]
        env = environment(folder, **variables)
        if imports:
            self.process = subprocess.Popen(
                words,
                cwd=folder,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        else:
            self.process = Preloaded(
                words[1:], folder, env, subprocess.STDOUT, new_session=True
            )
        self.text = ''

    def wait_for(self, seen: Callable[[str], bool]) -> None:
        """Read until a line is what is waited for."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.text += line
            if seen(line):
                return
        raise AssertionError(self.text[-3000:])

    def wait_for_iteration(self, number: int) -> None:
        """By the lines of the log."""
        self.wait_for(lambda line: iteration_of(line) >= number)

    def send(self, number: int, to_group: bool = True) -> None:
        if to_group:
            # Of a process that has ended, nothing is left to get it.
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)

    def finish(self, timeout: float = 60) -> int:
        """The exit code."""
        try:
            self.text += self.process.communicate(timeout=timeout)[0]
        finally:
            self.kill()
        return self.process.returncode

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def saved(self) -> Path:
        """The checkpoint that it says it has saved before it stopped."""
        found = re.search(r'stopped by \w+: saved (\S+)\. ', self.text)
        assert found is not None, self.text[-3000:]
        return Path(found[1])

    def emergencies(self) -> list[int]:
        """Iterations of the emergency checkpoints."""
        paths = self.work_dir.glob('emergency_iter_*.pth')
        return sorted(int(path.stem.split('_')[2]) for path in paths)


def iteration_of(line: str) -> int:
    """How many iterations a line of the log has seen; -1 if it is none."""
    found = re.search(r'\(train\) *(?:\[ *(\d+)\])?\[ *(\d+)/', line)
    if found is None:
        return -1
    return 10 * (int(found[1] or 1) - 1) + int(found[2])


def reference(folder: Path, name: str = 'reference', **kwargs: Any) -> Path:
    """A run without signals that saves after every step."""
    run = Run(
        folder,
        name,
        '--cfg-options',
        'default_hooks.checkpoint.interval=1',
        PAUSE=0,
        **kwargs,
    )
    assert run.finish() == 0, run.text[-3000:]
    return run.work_dir


def assert_same_state(
    found: Path, expected: Path, statistics: bool = True
) -> None:
    """Bit by bit: weights, optimizer, schedule, generators, iteration."""
    ours, theirs = load_checkpoint(found), load_checkpoint(expected)
    for one in (ours, theirs):
        for name in () if statistics else ('running_mean', 'running_var'):
            del one['state_dict'][f'layers.1.{name}']
    for key in ('state_dict', 'optimizer', 'param_schedulers'):
        assert_same(ours[key], theirs[key], f'{found.name}: {key}')
    assert ours['meta']['iter'] == theirs['meta']['iter']
    assert_same(_generators(ours), _generators(theirs), found.name)


def _generators(checkpoint: dict[str, Any]) -> dict[int, Any]:
    """Of all ranks, as they were when the checkpoint was saved."""
    ranks = checkpoint['mmstable']['SafeCheckpointHook']['rng']
    for state in ranks.values():
        # The end of an epoch is the start of the next one, too.
        state.pop('pass_start')
    return ranks


def storm(
    folder: Path, variant: Variant, signals: int, rng: random.Random
) -> None:
    """Signals at random moments, each to a run that resumes the one before.

    What is saved is compared with what a run without signals has saved after
    the same iteration, and the ends of both are.
    """
    prepare(folder, variant)
    expected = reference(folder)
    lives = [_Life(folder / 'run_0')]
    for number in range(1, signals + 1):
        lives[-1].stop(variant, rng, expected)
        if lives[-1].done > variant.length // 2 and number < signals:
            lives.append(_Life(folder / f'run_{number}'))
    run = Run(folder, lives[-1].work_dir.name, '--resume', 'auto', PAUSE=0)
    assert run.finish() == 0, run.text[-3000:]
    name = f'iter_{variant.length}.pth'
    assert_same_state(run.work_dir / name, expected / name)


class _Life:
    """A run that is stopped and resumed."""

    def __init__(self, work_dir: Path) -> None:
        self.work_dir, self.done = work_dir, 0

    def stop(
        self, variant: Variant, rng: random.Random, expected: Path
    ) -> None:
        run = Run(self.work_dir.parent, self.work_dir.name, '--resume', 'auto')
        run.wait_for_iteration(self.done + rng.randint(1, 10))
        time.sleep(rng.random() * 0.15)
        number = rng.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGHUP])
        run.send(number)
        if rng.random() < 0.5:
            time.sleep(rng.random() * 0.3)
            run.send(number)
        assert run.finish() == 128 + number, run.text[-3000:]
        assert 'Traceback' not in run.text, run.text[-3000:]
        path = run.saved()
        self.done = int(path.stem.split('_')[-1])
        assert self.done % variant.window == 0
        assert_same_state(path, expected / f'iter_{self.done}.pth')
