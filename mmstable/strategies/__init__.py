"""How is a model spread over the ranks?"""

from mmstable.strategies.safe_fsdp2_strategy import SafeFSDP2Strategy
from mmstable.strategies.safe_fsdp_strategy import SafeFSDPStrategy

__all__ = ['SafeFSDP2Strategy', 'SafeFSDPStrategy']
