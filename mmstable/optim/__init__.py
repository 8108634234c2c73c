"""Optimizer wrappers that measure, judge, and apply or skip each step."""

from mmstable.optim.fused import FusedAdamW, FusedSGD
from mmstable.optim.wrapper import SafeAmpOptimWrapper, SafeOptimWrapper

__all__ = [
    'FusedAdamW',
    'FusedSGD',
    'SafeAmpOptimWrapper',
    'SafeOptimWrapper',
]
