"""Runs that say which samples they used, and can be cut anywhere."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import DataLoader, Dataset

import mmstable.loops  # noqa: F401  (registers the loops)
from tests.toys import ToyModel, toy_batch, toy_runner


class Numbered(Dataset):
    """Samples with a number, each read with random noise.

    Args:
        length: How many.
        noise: Whether to draw from all three global generators.
    """

    def __init__(self, length: int = 10, noise: bool = True) -> None:
        self.length, self.noise = length, noise
        self.reads = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.reads += 1
        x, y = toy_batch(int(index), size=1)
        x = x[0]
        if self.noise:
            x = x + 0.1 * torch.rand(4) + 0.1 * random.random()
            x = x + 0.1 * float(np.random.rand())
        return dict(inputs=x, targets=y[0], number=int(index))


class DropoutModel(ToyModel):
    """Draws random numbers of its own in every iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, inputs, targets, number, mode='tensor'):
        outputs = super().forward(self.dropout(inputs), targets, mode)
        return list(outputs) if mode == 'predict' else outputs


class Diary(Hook):
    """Notes what training sees, and carries the state of the loop."""

    priority = 'LOW'

    def __init__(self) -> None:
        self.numbers: list[list[int]] = []
        self.batch_idx: list[int] = []
        self.iters: list[int] = []
        self.validated: list[int] = []
        self.state: dict[str, Any] = {}

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        self.numbers.append(np.ravel(data_batch['number']).tolist())
        self.batch_idx.append(batch_idx)
        self.iters.append(runner.iter)

    def before_val(self, runner):
        self.validated.append(runner.iter)
        torch.rand(3)

    def before_save_checkpoint(self, runner, checkpoint):
        loop = runner.train_loop
        checkpoint['mmstable'] = {
            'loop': loop.state_dict(),
            'rng': loop.rng_state(),
        }

    def after_load_checkpoint(self, runner, checkpoint):
        # A new process has no reason to be where the old one was.
        torch.rand(3), random.random(), np.random.rand()
        self.state = checkpoint.get('mmstable', {})
        if self.state:
            runner.train_loop.load_state_dict(self.state['loop'])
            runner.train_loop.resume_rng(self.state['rng'])


class Forgetful(Diary):
    """Carries nothing: what is left are mmengine's own checkpoints."""

    def before_save_checkpoint(self, runner, checkpoint):
        pass


def iter_loop(max_iters: int = 11, **kwargs: Any) -> dict[str, Any]:
    return dict(
        type='mmstable.SafeIterBasedTrainLoop',
        max_iters=max_iters,
        **{'val_interval': 10**6, **kwargs},
    )


def epoch_loop(max_epochs: int = 3, **kwargs: Any) -> dict[str, Any]:
    return dict(
        type='mmstable.SafeEpochBasedTrainLoop',
        max_epochs=max_epochs,
        **{'val_interval': 10**6, **kwargs},
    )


def build(
    work_dir: Path,
    loader: Any,
    loop: dict[str, Any],
    hooks: Iterable[Hook] = (),
    interval: int = 1,
    by_epoch: bool = False,
    stock: bool = False,
    diary: Diary | None = None,
    **kwargs: Any,
) -> Runner:
    """A runner that saves a checkpoint after every iteration."""
    torch.manual_seed(0)
    settings = dict(
        model=DropoutModel(),
        train_dataloader=loader,
        train_cfg=loop,
        hooks=(diary or (Forgetful() if stock else Diary()), *hooks),
        default_hooks=dict(
            checkpoint=dict(
                type='CheckpointHook', interval=interval, by_epoch=by_epoch
            ),
            logger=dict(type='LoggerHook', interval=10**6),
        ),
    )
    return toy_runner(work_dir, **{**settings, **kwargs})


def train(*args: Any, **kwargs: Any) -> Runner:
    runner = build(*args, **kwargs)
    runner.train()
    # Workers that persist would be inherited by all that come later.
    runner.train_dataloader._iterator = None
    return runner


def resume(work_dir: Path, checkpoint: Path, *args: Any, **kwargs: Any):
    return train(
        work_dir,
        *args,
        **kwargs,
        load_from=str(checkpoint),
        resume=True,
    )


def diary(runner: Runner) -> Diary:
    return next(hook for hook in runner.hooks if isinstance(hook, Diary))


class Score(BaseMetric):
    """Better every time."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = itertools.count(1)

    def process(self, data_batch, data_samples):
        self.results.append(len(data_samples))

    def compute_metrics(self, results):
        return dict(score=float(next(self.scores)))


class ConstantScore(Score):
    def compute_metrics(self, results):
        return dict(score=1.0)


def validation(metric: type[Score] = Score) -> dict[str, Any]:
    """What a runner needs to validate."""
    return dict(
        val_dataloader=loader(Numbered(4)),
        val_evaluator=Evaluator(metric()),
        val_cfg=dict(),
    )


def log_of(runner: Runner) -> str:
    return next(Path(runner.log_dir).glob('*.log')).read_text()


def loader(dataset: Dataset, batch_size: int = 3, **kwargs: Any) -> DataLoader:
    return DataLoader(dataset, batch_size=batch_size, **kwargs)
