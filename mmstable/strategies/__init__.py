"""How is a model spread over the ranks?"""

from mmstable.strategies.safe_fsdp_strategy import SafeFSDPStrategy

__all__ = ['SafeFSDPStrategy']
