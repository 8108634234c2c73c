"""A model and data for a storm of seconds."""

from __future__ import annotations

import torch
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS
from torch import nn
from torch.utils.data import Dataset

from tests.toys import toy_batch


@DATASETS.register_module()
class TinyData(Dataset):
    metainfo: dict = {}

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        x, y = toy_batch(int(index), size=1)
        return dict(inputs=x[0], targets=y[0])


@MODELS.register_module()
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
