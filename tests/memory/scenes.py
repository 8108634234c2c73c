"""A segmentation model that does not fit above some number of samples."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from torch import nn
from torch.utils.data import DataLoader, Dataset

from mmstable.report import OutOfMemory
from tests.loops.runs import iter_loop
from tests.toys import toy_runner

OutOfMemoryError = getattr(
    torch, 'OutOfMemoryError', torch.cuda.OutOfMemoryError
)
NORMS = {
    'gn': lambda width: nn.GroupNorm(2, width),
    'bn': nn.BatchNorm2d,
}
SIZE = 8


def run_out() -> None:
    raise OutOfMemoryError(
        'CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1 GiB.'
    )


class Limited(nn.Module):
    """A layer that has memory for some samples only.

    Args:
        forward (int): Most samples in a forward pass.
        backward (int): Most samples in a backward pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self.forward_limit = self.backward_limit = 10**6
        self.failures = 0

    def forward(self, x):
        if len(x) > self.forward_limit:
            self.failures += 1
            run_out()
        if len(x) > self.backward_limit and x.requires_grad:
            x.register_hook(self._fail)
        return x

    def _fail(self, grad):
        # What was recomputed may be a part of that batch.
        if len(grad) > self.backward_limit:
            self.failures += 1
            run_out()


class SceneNet(BaseModel):
    """A backbone and a head whose loss is averaged over the batch."""

    def __init__(self, norm='gn', loss='mean', dropout=0.0, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            NORMS[norm](8),
            nn.ReLU(),
            Limited(),
            nn.Dropout(dropout),
            nn.Conv2d(8, 8, 3, padding=1),
            NORMS[norm](8),
            nn.ReLU(),
        )
        self.head = nn.Conv2d(8, 5, 1)
        self.kind = loss

    @property
    def limited(self) -> Limited:
        return self.backbone[3]

    def forward(self, inputs, targets, mode='tensor', **kwargs):
        outputs = self.head(self.backbone(inputs)).float()
        if mode == 'predict':
            return list(outputs.argmax(1))
        return dict(loss=self.loss(outputs, targets))

    def loss(self, outputs, targets):
        if self.kind == 'mean':
            return F.cross_entropy(outputs, targets)
        if self.kind == 'ignore_index':
            return F.cross_entropy(outputs, targets, ignore_index=4)
        each = F.cross_entropy(outputs, targets, reduction='none')
        positive = targets == 1
        # As mmdet does with `avg_factor`.
        return (each * positive).sum() / positive.sum().clamp(min=1)


class Scenes(Dataset):
    """Scenes with a path, and very different numbers of valid pixels."""

    def __init__(self, length: int = 32, size: int = SIZE) -> None:
        self.length, self.size = length, size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(index)
        shape = self.size, self.size
        targets = torch.randint(0, 4, shape, generator=generator)
        valid = torch.rand(shape, generator=generator) < (index % 4 + 1) / 5
        targets[~valid] = 4
        return dict(
            inputs=torch.randn(3, *shape, generator=generator),
            targets=targets,
            img_path=f'scenes/{index}.png',
        )


class Limits(Hook):
    """Sets limits in some iterations, counted from 1.

    Args:
        at (dict): Limits of the forward and backward pass by iteration.
    """

    def __init__(self, at: dict[int, tuple[int, int]]) -> None:
        self.at = at
        self.events: list[OutOfMemory] = []
        self.outputs: list[Any] = []
        self.reports: list[Any] = []

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        model = getattr(runner.model, 'module', runner.model)
        limits = self.at.get(runner.iter + 1, (10**6, 10**6))
        model.limited.forward_limit, model.limited.backward_limit = limits

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        self.outputs.append(outputs)

    def after_event(self, runner, event):
        if isinstance(event, OutOfMemory):
            self.events.append(event)

    def after_step(self, runner, name, report):
        self.reports.append(report)


def scene_run(
    folder,
    limits: dict[int, tuple[int, int]] | None = None,
    model: Any = None,
    oom: Any = None,
    batch_size: int = 4,
    max_iters: int = 6,
    hooks: tuple = (),
    **kwargs: Any,
):
    """Train; the runner, and the hook that has set the limits."""
    hook = Limits(limits or {})
    torch.manual_seed(0)
    settings = dict(
        model=model or SceneNet(),
        train_dataloader=DataLoader(Scenes(), batch_size=batch_size),
        train_cfg=iter_loop(max_iters, oom=oom),
        hooks=(hook, *hooks),
    )
    runner = toy_runner(folder, **{**settings, **kwargs})
    runner.train()
    return runner, hook
