"""How is an iteration run?  Loops that resume, and that survive."""

from mmstable.loops.eval import SafeTestLoop, SafeValLoop
from mmstable.loops.train import (
    SafeEpochBasedTrainLoop,
    SafeIterBasedTrainLoop,
)

__all__ = [
    'SafeEpochBasedTrainLoop',
    'SafeIterBasedTrainLoop',
    'SafeTestLoop',
    'SafeValLoop',
]
