"""Races of the optimizer step alone, on ready gradients."""

from __future__ import annotations

from dispatch_counts import count
from interleaved import Contender, Race, race
from stock_wrappers import CheckingAmpOptimWrapper, CpuAmpOptimWrapper
from torch.optim import AdamW
from vit_parameters import GradedParameters

from mmstable.optim import SafeAmpOptimWrapper

CLIP = dict(max_norm=35, norm_type=2)
LOSS_SCALE = 1024.0
# The dispatcher is asked about one step in the middle of a run.
_STEPS_BEFORE_COUNTING = 2


class StepCase:
    """One optimizer over one list of parameters, and its wrappers.

    Everything shares the same memory, so that no contender is luckier in its
    addresses than another.

    Args:
        shapes (list[tuple[int]]): Shapes of the parameters.
        fused (bool): Whether the optimizer is fused.
    """

    def __init__(self, shapes: list[tuple[int, ...]], fused: bool) -> None:
        self.data = GradedParameters(shapes)
        self.optimizer = AdamW(self.data.params, lr=1e-6, fused=fused)
        options = dict(optimizer=self.optimizer, clip_grad=CLIP)
        self.safe = SafeAmpOptimWrapper(loss_scale=LOSS_SCALE, **options)
        self.stock = CpuAmpOptimWrapper(LOSS_SCALE, **options)
        self.checking = CheckingAmpOptimWrapper(LOSS_SCALE, **options)
        for wrapper in (self.stock, self.checking):
            # Creates the scale tensor, as the first backward pass would.
            wrapper.loss_scaler.scale(self.data.grads[0].sum())
        self.safe.step()

    def contender(self, name: str) -> Contender:
        """One of 'safe', 'stock', 'stock + loop', 'bare' and 'read'."""
        actions = {
            'safe': self.safe.step,
            'stock': self.stock.step,
            'stock + loop': self.checking.step,
            'bare': self.optimizer.step,
            'read': self.read_pass,
        }
        return Contender(name, actions[name], self.data.refill)

    def race(self, names: list[str], rounds: int) -> Race:
        """Let some contenders race."""
        return race([self.contender(name) for name in names], rounds)

    def read_pass(self) -> None:
        """Read every gradient once, by its sum."""
        for grad in self.data.grads:
            grad.sum()

    def counts(self, name: str) -> tuple[int, int]:
        """Host reads and gradient-sized allocations in one step."""
        contender = self.contender(name)
        for _ in range(_STEPS_BEFORE_COUNTING):
            contender.prepare()
            contender.run()
        contender.prepare()
        smallest = min(grad.numel() for grad in self.data.grads)
        counted = count(contender.run, large=smallest)
        return counted.host_reads, counted.large_allocations


def equal_shapes(tensors: int, numel: int) -> list[tuple[int, ...]]:
    """Shapes of equal vectors that have so many values together.

    Args:
        tensors (int): Number of vectors.
        numel (int): Number of values in all of them.
    """
    return [(numel // tensors,)] * tensors
