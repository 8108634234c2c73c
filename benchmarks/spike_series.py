"""Losses and gradient norms of healthy runs, made up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Callable

# Given the source of chance and how many numbers to make.
Series = Callable[[Random, int], Iterator[float]]


def lognormal(draw: Random, count: int, sigma: float) -> Iterator[float]:
    """Numbers that vary by factors."""
    for _ in range(count):
        yield draw.lognormvariate(0, sigma)


def pareto(draw: Random, count: int, alpha: float) -> Iterator[float]:
    """Numbers with a very long tail."""
    for _ in range(count):
        yield draw.paretovariate(alpha)


def hard_batches(
    draw: Random, count: int, share: float, factor: float, sigma: float = 0.3
) -> Iterator[float]:
    """Some batches are harder than the others."""
    for value in lognormal(draw, count, sigma):
        yield value * (factor if draw.random() < share else 1.0)


def zeros(
    draw: Random, count: int, share: float, sigma: float = 0.5
) -> Iterator[float]:
    """Nothing left to learn in some batches, as with a hinge loss."""
    for value in lognormal(draw, count, sigma):
        yield 0.0 if draw.random() < share else value


def falling(
    draw: Random, count: int, start: float, end: float, length: float
) -> Iterator[float]:
    """A loss that falls; the length is a share of the count."""
    for index, value in enumerate(lognormal(draw, count, 0.3)):
        fallen = math.exp(-index / (length * count))
        yield value * (end + (start - end) * fallen)


def dropping(draw: Random, count: int) -> Iterator[float]:
    """A learning rate that falls in steps."""
    for index, value in enumerate(lognormal(draw, count, 0.3)):
        yield value * 0.1 ** (3 * index // count)


def normal(
    draw: Random, count: int, mean: float, deviation: float
) -> Iterator[float]:
    """Numbers that vary by differences."""
    for _ in range(count):
        yield draw.gauss(mean, deviation)


SERIES: dict[str, Series] = {
    'lognormal 0.5': partial(lognormal, sigma=0.5),
    'lognormal 1.0': partial(lognormal, sigma=1.0),
    'lognormal 1.5': partial(lognormal, sigma=1.5),
    'Pareto 1.2': partial(pareto, alpha=1.2),
    '5 % of batches x 50': partial(hard_batches, share=0.05, factor=50.0),
    '4 % of batches x 10': partial(hard_batches, share=0.04, factor=10.0),
    '10 % zeros': partial(zeros, share=0.1),
    '36 % zeros': partial(zeros, share=0.36),
    '60 % zeros': partial(zeros, share=0.6),
    '80 % zeros': partial(zeros, share=0.8),
    'slow decay': partial(falling, start=5.0, end=0.1, length=0.3),
    'fall from a high start': partial(
        falling, start=1000.0, end=1.0, length=0.003
    ),
    'below zero': partial(normal, mean=-3.0, deviation=0.6),
    'nearly constant': partial(normal, mean=1.0, deviation=1e-9),
    'learning-rate drops': dropping,
}

# Those that reach a thousand times their level in the normal course of things.
FAR_REACHING: dict[str, Series] = {
    'lognormal 2.0': partial(lognormal, sigma=2.0),
    'lognormal 2.5': partial(lognormal, sigma=2.5),
    'lognormal 3.0': partial(lognormal, sigma=3.0),
    '6 % of batches x 3000': partial(hard_batches, share=0.06, factor=3e3),
    '3 % of batches x 2000': partial(hard_batches, share=0.03, factor=2e3),
    '1 % of batches x 2000': partial(hard_batches, share=0.01, factor=2e3),
}
