"""Races of whole training iterations."""

from __future__ import annotations

import copy
from typing import Any, Callable

import torch
import torch.nn.functional as F
from interleaved import Contender, Race, race
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from step_cases import CLIP, LOSS_SCALE
from stock_wrappers import CpuAmpOptimWrapper
from torch import Tensor, nn
from torch.optim import AdamW

from mmstable.optim import SafeAmpOptimWrapper, SafeOptimWrapper

WRAPPERS: dict[str, dict[str, Callable[..., OptimWrapper]]] = {
    'fp32': {
        'safe': SafeOptimWrapper,
        'stock': OptimWrapper,
    },
    'fp16': {
        'safe': lambda **options: SafeAmpOptimWrapper(
            loss_scale=LOSS_SCALE, **options
        ),
        'stock': lambda **options: CpuAmpOptimWrapper(LOSS_SCALE, **options),
    },
}


class SmallViT(BaseModel):
    """A vision transformer for small pictures.

    Args:
        width (int): Size of a token. Defaults to 192.
        depth (int): Number of blocks. Defaults to 6.
        tokens (int): Number of patches. Defaults to 64.
        classes (int): Number of classes. Defaults to 100.
    """

    def __init__(
        self,
        width: int = 192,
        depth: int = 6,
        tokens: int = 64,
        classes: int = 100,
    ) -> None:
        super().__init__()
        self.embedding = nn.Conv2d(3, width, 4, stride=4)
        self.position = nn.Parameter(0.02 * torch.randn(tokens, width))
        block = nn.TransformerEncoderLayer(
            width,
            nhead=width // 64,
            dim_feedforward=4 * width,
            dropout=0.0,
            activation='gelu',
            batch_first=True,
            norm_first=True,
        )
        self.blocks = nn.TransformerEncoder(
            block, depth, enable_nested_tensor=False
        )
        self.head = nn.Linear(width, classes)

    def forward(
        self, inputs: Tensor, labels: Tensor, mode: str = 'loss'
    ) -> dict[str, Tensor]:
        """The loss, whatever the mode."""
        tokens = self.embedding(inputs).flatten(2).transpose(1, 2)
        features = self.blocks(tokens + self.position).mean(dim=1)
        scores = self.head(features).float()
        return dict(loss=F.cross_entropy(scores, labels))


def race_iterations(
    precision: str, width: int, batch: int, rounds: int
) -> Race:
    """Let the safe wrapper race against mmengine's, each with its model.

    Args:
        precision (str): 'fp32' or 'fp16'.
        width (int): Width of the model.
        batch (int): Pictures in an iteration.
        rounds (int): Timed rounds.
    """
    torch.manual_seed(0)
    model = SmallViT(width)
    data = dict(
        inputs=torch.randn(batch, 3, 32, 32),
        labels=torch.randint(100, (batch,)),
    )
    return race(
        [
            _contender(name, build, copy.deepcopy(model), data)
            for name, build in WRAPPERS[precision].items()
        ],
        rounds,
    )


def _contender(
    name: str,
    build: Callable[..., OptimWrapper],
    model: BaseModel,
    data: dict[str, Any],
) -> Contender:
    optimizer = AdamW(model.parameters(), lr=1e-4, fused=True)
    wrapper = build(optimizer=optimizer, clip_grad=CLIP)
    wrapper.initialize_count_status(model, 0, 10**6)

    def iteration() -> None:
        losses = model.train_step(data, optim_wrapper=wrapper)
        # mmengine's RuntimeInfoHook reads the loss after every iteration.
        losses['loss'].item()

    return Contender(name, iteration)
