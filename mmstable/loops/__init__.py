"""How is an iteration run?  Train loops that resume fast and exactly."""

from mmstable.loops.safe_epoch_based_train_loop import SafeEpochBasedTrainLoop
from mmstable.loops.safe_iter_based_train_loop import SafeIterBasedTrainLoop

__all__ = ['SafeEpochBasedTrainLoop', 'SafeIterBasedTrainLoop']
