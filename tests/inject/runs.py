"""Runs that are broken on purpose, and what they tell."""

from __future__ import annotations

from pathlib import Path

import torch
from mmengine.model import BaseModel
from torch import nn

from mmstable.hooks import FaultInjectorHook
from mmstable.report import InjectedFault, StepFault, read_events
from tests.toys import toy_runner

HEAD = 'net.head.weight'
STOCK = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.1))
ADAM = dict(
    type='mmstable.SafeOptimWrapper', optimizer=dict(type='AdamW', lr=0.01)
)
FP16 = dict(
    type='mmstable.SafeAmpOptimWrapper',
    loss_scale=64.0,
    optimizer=dict(type='AdamW', lr=0.01, fused=True),
)
LOOPS = {
    'mmengine': 'IterBasedTrainLoop',
    'mmstable': 'mmstable.SafeIterBasedTrainLoop',
}


class TermsModel(BaseModel):
    """A norm with statistics, and two losses."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        self.head = nn.Linear(8, 2)

    def forward(self, inputs, targets, mode='tensor'):
        # A tensor in a list in a dict, as some preprocessors make them.
        if isinstance(inputs, dict):
            inputs = inputs['imgs'][0]
        out = self.head(self.body(inputs))
        if mode == 'loss':
            error = (out.float() - targets).square()
            parts = [error[:, 0].mean(), error[:, 1].mean()]
            return dict(loss_cls=parts[0], loss_bbox=parts, acc=error.mean())
        return out


def injector(*faults, **kwargs):
    return FaultInjectorHook(faults=list(faults), enabled=True, **kwargs)


def build(work_dir, *faults, hooks=(), seed=0, **kwargs):
    hook = injector(*faults, seed=seed)
    hooks = [hook, dict(type='mmstable.EventLogHook'), *hooks]
    return toy_runner(work_dir, hooks=hooks, **kwargs)


def train(work_dir, *faults, **kwargs):
    runner = build(work_dir, *faults, **kwargs)
    runner.train()
    return runner


def events(runner, kind):
    # Runs of one second share their directory.
    paths = Path(runner.log_dir, 'stability').glob('events*.jsonl')
    path = max(paths, key=lambda path: path.stat().st_mtime_ns)
    return [e for e in read_events(path) if isinstance(e, kind)]


def injected(runner):
    return [
        (e.iteration, e.kind, e.target, e.value)
        for e in events(runner, InjectedFault)
    ]


def step_faults(runner):
    return [(e.iteration, e.fault) for e in events(runner, StepFault)]


def hooks_on(model):
    counts = [len(p._backward_hooks or ()) for p in model.parameters()]
    for module in model.modules():
        counts.append(len(module._forward_hooks))
        counts.append(len(module._forward_pre_hooks))
    return sum(counts)


def is_finite(model):
    return all(torch.isfinite(p).all() for p in model.parameters())
