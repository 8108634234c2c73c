"""Which share of fp16 gradients has become zero for being too small?

A zero alone does not tell: behind a ReLU half of all gradients are zero, and
should be. But values that fade away do not stop at the smallest number of
fp16, so how many there are just above it tells how many were lost below.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

# Fewer of the smallest values than that tell nothing.
_FEWEST = 8
# How the density goes on towards zero, as a power of how much it grew from
# one bin to the next: 0.2 for a bell, 0.5 for an exponential.
_STEEPNESS = 0.5
# Values of a gradient that are looked at.
_LOOKED_AT = 1 << 16
_SMALLEST_NORMAL = 2.0**-14


@dataclass(frozen=True)
class SmallValues:
    """The smallest values of an fp16 gradient, in units of 2**-24.

    Args:
        module (str): The module whose output it is the gradient of.
        size (int): How many values the gradient has.
        total (int): How many of them were looked at.
        zeros (int): How many are 0.
        ones (int): How many are 1 (from 0.5 to 1.5 before rounding).
        few (int): How many are 2 or 3 (from 1.5 to 3.5).
    """

    module: str
    size: int
    total: int
    zeros: int
    ones: int
    few: int


@dataclass(frozen=True)
class Underflow:
    """What was lost in one iteration.

    Args:
        share (float): Of all gradients that should not be zero.
        module (str): The module that lost the largest share.
        worst (float): That share.
    """

    share: float
    module: str
    worst: float


def count_small(grad: Tensor) -> tuple[Tensor, int]:
    """Count zeros, ones and values up to 3, on the device of the gradient.

    Args:
        grad (Tensor): In fp16.

    Returns:
        tuple: A tensor with the three counts, and how many were looked at.
    """
    # Odd, so that it does not fall into step with rows of pixels.
    step = grad.numel() // _LOOKED_AT | 1
    bits = grad.reshape(-1)[::step].view(torch.int16).bitwise_and(0x7FFF)
    counts = [(bits == 0).sum(), (bits == 1).sum(), (bits < 4).sum()]
    return torch.stack(counts), bits.numel()


def find_underflow(
    found: Iterable[SmallValues], peaks: Iterable[float]
) -> Underflow | None:
    """Put the gradients of an iteration together.

    Args:
        found (Iterable[SmallValues]): Of each of them.
        peaks (Iterable[float]): Their largest values.

    Returns:
        Underflow or None: None if there are no gradients in fp16.
    """
    # Where nothing is left there is nothing to tell from. It was lost if
    # gradients fade away in this model.
    fade = min((p for p in peaks if p > 0), default=0.0) < _SMALLEST_NORMAL
    lost: dict[str, float] = {}
    alive: dict[str, float] = {}
    for one in found:
        flushed = estimate_flushed(one.zeros, one.ones, one.few)
        if one.zeros == one.total and fade:
            flushed = float(one.total)
        weight = one.size / one.total
        kept = one.total - one.zeros
        lost[one.module] = lost.get(one.module, 0.0) + weight * flushed
        alive[one.module] = alive.get(one.module, 0.0) + weight * kept
    shares = {name: _share(lost[name], alive[name]) for name in lost}
    if not shares:
        return None
    worst = max(shares, key=lambda name: shares[name])
    total = _share(sum(lost.values()), sum(alive.values()))
    return Underflow(total, worst, shares[worst])


def estimate_flushed(zeros: int, ones: int, few: int) -> float:
    """How many of the zeros were not zero before rounding.

    The density of values is followed from the two bins down to zero. Where
    values spread over many orders of magnitude that gives too few: those are
    lost, but would hardly count.

    Args:
        zeros (int): Zeros.
        ones (int): Values from 0.5 to 1.5 times the smallest number.
        few (int): Values from 1.5 to 3.5 times the smallest number.
    """
    if ones + few < _FEWEST:
        return 0.0
    # Counts for a width of 1, of both signs together.
    near, far = ones, few / 2
    density = near * (near / far) ** _STEEPNESS if far else float('inf')
    # Zeros come from a width of one half.
    return min(float(zeros), density / 2)


def _share(lost: float, alive: float) -> float:
    return lost / (lost + alive) if lost else 0.0
