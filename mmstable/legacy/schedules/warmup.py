"""The warm-ups of mmcv 1.x: a factor for the first iterations."""

from __future__ import annotations

WARMUPS = ('constant', 'linear', 'exp')


def warmup_factor(kind: str, done: int, length: int, ratio: float) -> float:
    """What a learning rate is multiplied by, or a momentum divided by.

    Args:
        kind (str): 'constant', 'linear' or 'exp'.
        done (int): Iterations that are over.
        length (int): Iterations of the whole warm-up.
        ratio (float): The factor at its start.
    """
    if kind == 'constant':
        return ratio
    if kind == 'linear':
        return 1 - (1 - done / length) * (1 - ratio)
    return ratio ** (1 - done / length)
