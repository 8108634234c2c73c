"""How is an iteration run?  Loops that resume, and that survive."""

from mmstable.loops.safe_epoch_based_train_loop import SafeEpochBasedTrainLoop
from mmstable.loops.safe_eval_loops import SafeTestLoop, SafeValLoop
from mmstable.loops.safe_iter_based_train_loop import SafeIterBasedTrainLoop

__all__ = [
    'SafeEpochBasedTrainLoop',
    'SafeIterBasedTrainLoop',
    'SafeTestLoop',
    'SafeValLoop',
]
