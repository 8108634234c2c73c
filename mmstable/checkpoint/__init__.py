"""How is state saved, verified, found and loaded?"""

from __future__ import annotations

from mmstable.checkpoint.safe_globals import allow_mmengine_checkpoints

__all__ = ['allow_mmengine_checkpoints']
