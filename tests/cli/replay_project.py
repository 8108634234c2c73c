"""A project whose second step is bad, and the bundle that it leaves."""

from __future__ import annotations

from pathlib import Path

CODE = """
import torch
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS
from torch import nn
from torch.utils.data import Dataset


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, weight):
        total = weight.sum(1)
        return self.fc(x).sum(1) * total / total


@MODELS.register_module()
class ReplayModel(BaseModel):
    def __init__(self, blocks=9, steep=False, deep=False):
        super().__init__()
        self.body = nn.Sequential(*(nn.Linear(4, 4) for _ in range(blocks)))
        self.head = Head()
        self.steep, self.deep = steep, deep

    def forward(self, inputs, weight, path, mode='loss'):
        x = self.body(inputs)
        if self.steep:
            return dict(loss=(self.head.fc(x) * 0 + 12).exp().mean())
        if self.deep:
            return dict(loss=(x.square().sum(1) * weight[:, 0]).sqrt().sum())
        return dict(loss=self.head(x, weight).square().mean())


@DATASETS.register_module()
class ReplayData(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        weight = torch.zeros(3) if index == 6 else torch.ones(3)
        inputs = torch.randn(4, generator=generator)
        return dict(inputs=inputs, weight=weight, path=f'data/{index}.png')
"""
GAN = """
from mmengine.optim import OptimWrapperDict
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS

from mmstable import SafeOptimWrapper


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class OneForEach:
    def __init__(self, optim_wrapper_cfg, paramwise_cfg=None):
        pass

    def __call__(self, model):
        return OptimWrapperDict(**{
            name: SafeOptimWrapper(torch.optim.SGD(
                getattr(model, name).parameters(), lr=0.01))
            for name in ('body', 'head')
        })


@MODELS.register_module()
class ReplayGan(ReplayModel):
    def train_step(self, data, optim_wrapper):
        inputs, weight = data['inputs'], data['weight']
        loss_body = self.body(inputs).square().mean()
        optim_wrapper['body'].update_params(loss_body)
        scores = self.head.fc(self.body(inputs).detach())
        loss_head = (scores.sum(1) * weight[:, 0]).square().sqrt().mean()
        optim_wrapper['head'].update_params(loss_head)
        return dict(loss_body=loss_body, loss_head=loss_head)
"""
CONFIG = """
custom_imports = dict(imports=['replay_toys'])
model = dict(type='ReplayModel')
train_dataloader = dict(
    batch_size=4,
    num_workers=0,
    dataset=dict(type='ReplayData'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    collate_fn=dict(type='default_collate'),
)
train_cfg = dict(
    type='mmstable.SafeIterBasedTrainLoop', max_iters=3, val_interval=100)
optim_wrapper = dict(
    type='mmstable.SafeOptimWrapper', optimizer=dict(type='SGD', lr=0.01))
default_hooks = dict(
    checkpoint=dict(
        type='mmstable.SafeCheckpointHook', interval=1, by_epoch=False))
custom_hooks = [dict(type='mmstable.FaultForensicsHook')]
randomness = dict(seed=0)
log_level = 'ERROR'
"""


def write(folder: Path) -> None:
    """Write the module and the config."""
    (folder / 'replay_toys.py').write_text(CODE + GAN)
    (folder / 'config.py').write_text(CONFIG)
