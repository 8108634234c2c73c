"""A storm of seconds: a tiny model, and attempts in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mmengine.dataset import InfiniteSampler
from mmengine.model import BaseModel
from torch import nn
from torch.utils.data import DataLoader

from mmstable.checkpoint.catalog import find_checkpoint
from mmstable.errors import StoppedBySignal
from tests.chaos.storm import GUARD
from tests.loops.runs import iter_loop
from tests.toys import ToyData, toy_runner


class TinyModel(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
        )

    def forward(self, inputs, targets, mode='tensor'):
        out = self.net(inputs)
        if mode == 'loss':
            return dict(loss_seg=(out.float() - targets).abs().mean())
        return out


class TinyRun:
    """Goes on with the newest checkpoint each time that it is called.

    Args:
        max_iters: How long it is.
        faults: For the injector.
    """

    def __init__(self, max_iters: int, faults: Sequence[dict]) -> None:
        self.max_iters, self.faults = max_iters, list(faults)

    def __call__(self, folder: Path) -> int:
        work_dir = folder / 'work'
        found = find_checkpoint(work_dir).found
        data = ToyData(64)
        runner = toy_runner(
            work_dir,
            model=TinyModel(),
            train_dataloader=DataLoader(
                data, batch_size=8, sampler=InfiniteSampler(data, seed=0)
            ),
            train_cfg=iter_loop(self.max_iters),
            optim_wrapper=dict(
                type='mmstable.SafeOptimWrapper',
                optimizer=dict(type='mmstable.FusedAdamW', lr=0.01),
            ),
            hooks=[
                dict(type='mmstable.EventLogHook'),
                dict(type='mmstable.DivergenceGuardHook', **GUARD),
                dict(type='mmstable.EmergencyCheckpointHook'),
                dict(
                    type='mmstable.FaultInjectorHook',
                    enabled=True,
                    faults=self.faults,
                ),
            ],
            default_hooks=dict(
                logger=dict(type='LoggerHook', interval=100),
                checkpoint=dict(
                    type='mmstable.SafeCheckpointHook',
                    interval=50,
                    by_epoch=False,
                    max_keep_ckpts=2,
                ),
            ),
            load_from=None if found is None else str(found.path),
            resume=found is not None,
        )
        try:
            runner.train()
        except (RuntimeError, StoppedBySignal):
            return 1
        return 0
