"""Which devices can be computed on?"""

from __future__ import annotations


def devices() -> list[str]:
    """The CPU, and every GPU that torch can use."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return ['cpu', *(f'cuda:{index}' for index in range(gpus))]
