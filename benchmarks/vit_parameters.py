"""Parameter lists of vision transformers, without the transformers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

WIDTHS = {'ViT-Ti': 192, 'ViT-S': 384, 'ViT-B': 768}
_DEPTH = 12
_PATCHES = 14 * 14
_CLASSES = 1000


def vit_shapes(width: int, depth: int = _DEPTH) -> list[tuple[int, ...]]:
    """Shapes of a ViT for 224x224 pictures, patch 16 and 1,000 classes.

    Args:
        width (int): Size of a token.
        depth (int): Number of blocks. Defaults to 12.
    """
    norm = [(width,), (width,)]
    embedding = [
        (1, 1, width),
        (1, _PATCHES + 1, width),
        (width, 3, 16, 16),
        (width,),
    ]
    block = [
        *norm,
        *_linear(width, 3 * width),
        *_linear(width, width),
        *norm,
        *_linear(width, 4 * width),
        *_linear(4 * width, width),
    ]
    return [*embedding, *block * depth, *norm, *_linear(width, _CLASSES)]


def _linear(inputs: int, outputs: int) -> list[tuple[int, ...]]:
    return [(outputs, inputs), (outputs,)]


class GradedParameters:
    """Parameters with gradients that can be brought back.

    Args:
        shapes (list[tuple[int]]): Their shapes.
    """

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        torch.manual_seed(0)
        self.params = [Parameter(0.02 * torch.randn(s)) for s in shapes]
        self._originals = [torch.randn(shape) for shape in shapes]
        for param, grad in zip(self.params, self._originals):
            param.grad = grad.clone()

    @property
    def grads(self) -> list[Tensor]:
        """The gradients."""
        return [param.grad for param in self.params if param.grad is not None]

    @property
    def numel(self) -> int:
        """Number of values in all parameters."""
        return sum(param.numel() for param in self.params)

    def refill(self) -> None:
        """Undo what a step did to the gradients.

        Without this a loss scale that is divided out again and again would
        leave denormal numbers, which are slow.
        """
        torch._foreach_copy_(self.grads, self._originals)
