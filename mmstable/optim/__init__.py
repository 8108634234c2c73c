"""What happens to this step?  Optimizer wrappers that obey its verdict."""

from mmstable.optim.fused import FusedAdamW, FusedSGD
from mmstable.optim.safe_amp_optim_wrapper import SafeAmpOptimWrapper
from mmstable.optim.safe_optim_wrapper import SafeOptimWrapper

__all__ = [
    'FusedAdamW',
    'FusedSGD',
    'SafeAmpOptimWrapper',
    'SafeOptimWrapper',
]
