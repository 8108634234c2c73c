"""The learning-rate and momentum policies of mmcv 1.x, as plain functions.

Every function has the value before any schedule, how much of the training is
done, and how long it lasts; the rest are settings. Training is counted in
epochs or in iterations, as the caller likes. The formulas are evaluated in
the order in which mmcv 1.7 does, so that the results are the same to the
last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import cos, pi
from typing import Any, Callable

Policy = Callable[..., float]
Phase = tuple[float, float, float]


def fixed(base: float, done: int, total: int) -> float:
    """Always the same."""
    return base


def step(
    base: float,
    done: int,
    total: int,
    step: int | Sequence[int],
    gamma: float = 0.1,
    minimum: float | None = None,
) -> float:
    """Times ``gamma`` at given points, or every so often."""
    if isinstance(step, int):
        power = done // step
    else:
        reached = (index for index, at in enumerate(step) if done < at)
        power = next(reached, len(step))
    value = base * gamma**power
    return value if minimum is None else max(value, minimum)


def exp(base: float, done: int, total: int, gamma: float) -> float:
    """Times ``gamma``, every time."""
    return base * gamma**done


def poly(
    base: float,
    done: int,
    total: int,
    power: float = 1.0,
    minimum: float = 0.0,
) -> float:
    """A polynomial down to ``minimum``."""
    coefficient = (1 - done / total) ** power
    return (base - minimum) * coefficient + minimum


def inv(
    base: float, done: int, total: int, gamma: float, power: float = 1.0
) -> float:
    """The inverse of a polynomial."""
    return base * (1 + gamma * done) ** (-power)


def cosine_annealing(
    base: float,
    done: int,
    total: int,
    minimum: float | None = None,
    minimum_ratio: float | None = None,
) -> float:
    """Half a cosine down to the minimum."""
    return _cosine(base, _target(base, minimum, minimum_ratio), done / total)


def flat_cosine_annealing(
    base: float,
    done: int,
    total: int,
    start_percent: float = 0.75,
    minimum: float | None = None,
    minimum_ratio: float | None = None,
) -> float:
    """The base value for a while, then half a cosine down."""
    start = round(total * start_percent)
    if done < start:
        return base
    target = _target(base, minimum, minimum_ratio)
    return _cosine(base, target, (done - start) / (total - start))


def cosine_restart(
    base: float,
    done: int,
    total: int,
    periods: Sequence[int],
    restart_weights: Sequence[float] = (1,),
    minimum: float | None = None,
    minimum_ratio: float | None = None,
) -> float:
    """Half a cosine down, again and again."""
    start = 0
    for period, weight in zip(periods, restart_weights):  # noqa: B007
        if done < start + period:
            break
        start += period
    target = _target(base, minimum, minimum_ratio)
    return _cosine(base, target, min((done - start) / period, 1), weight)


def linear_annealing(
    base: float,
    done: int,
    total: int,
    minimum: float | None = None,
    minimum_ratio: float | None = None,
) -> float:
    """A straight line down to the minimum."""
    return _line(base, _target(base, minimum, minimum_ratio), done / total)


def cyclic(
    base: float,
    done: int,
    total: int,
    target_ratio: float | Sequence[float] = (10, 1e-4),
    cyclic_times: int = 1,
    step_ratio_up: float = 0.4,
    anneal_strategy: str = 'cos',
    gamma: float = 1,
) -> float:
    """Away from the base value and back to another, several times."""
    far, last = two_ratios(target_ratio)
    length = total // cyclic_times
    cycle, place = divmod(done, length)
    scale = gamma**cycle
    up = int(step_ratio_up * length)
    if place < up:
        start, end, first, second = 0, up, 1.0, 1 - scale + far * scale
    elif up == 0:
        # mmcv takes every phase that starts at 0 for the way up.
        start, end, first, second = 0, length, far, 1 - scale + last * scale
    else:
        start, end, first, second = up, length, 1 - scale + far * scale, last
    anneal = _ANNEALING[anneal_strategy]
    return anneal(base * first, base * second, (place - start) / (end - start))


def one_cycle(
    base: float,
    done: int,
    total: int,
    max_lr: float,
    total_steps: int | None = None,
    pct_start: float = 0.3,
    anneal_strategy: str = 'cos',
    div_factor: float = 25,
    final_div_factor: float = 1e4,
    three_phase: bool = False,
) -> float:
    """From a part of ``max_lr`` up to it and down to nearly nothing."""
    # The rate of the optimizer plays no part in it.
    base = max_lr / div_factor
    steps = total if total_steps is None else total_steps
    least = 1 / final_div_factor
    phases: list[Phase] = [(pct_start * steps - 1, 1, div_factor)]
    if three_phase:
        phases.append((2 * pct_start * steps - 2, div_factor, 1))
        phases.append((steps - 1, 1, least))
    else:
        phases.append((steps - 1, div_factor, least))
    phases = [(end, base * first, base * last) for end, first, last in phases]
    return _in_phases(phases, done, anneal_strategy)


def one_cycle_momentum(
    base: float,
    done: int,
    total: int,
    base_momentum: float = 0.85,
    max_momentum: float = 0.95,
    pct_start: float = 0.3,
    anneal_strategy: str = 'cos',
    three_phase: bool = False,
) -> float:
    """From ``max_momentum`` down to ``base_momentum`` and up again."""
    low, high = base_momentum, max_momentum
    phases: list[Phase] = [(pct_start * total - 1, high, low)]
    if three_phase:
        phases.append((2 * pct_start * total - 2, low, high))
        phases.append((total - 1, high, high))
    else:
        phases.append((total - 1, low, high))
    return _in_phases(phases, done, anneal_strategy)


LR_POLICIES: dict[str, Policy] = {
    'fixed': fixed,
    'step': step,
    'exp': exp,
    'poly': poly,
    'inv': inv,
    'CosineAnnealing': cosine_annealing,
    'FlatCosineAnnealing': flat_cosine_annealing,
    'CosineRestart': cosine_restart,
    'cyclic': cyclic,
    'OneCycle': one_cycle,
    'LinearAnnealing': linear_annealing,
}
MOMENTUM_POLICIES: dict[str, Policy] = {
    'step': partial(step, gamma=0.5),
    'CosineAnnealing': cosine_annealing,
    'LinearAnnealing': linear_annealing,
    'cyclic': partial(cyclic, target_ratio=(0.85 / 0.95, 1.0)),
    'OneCycle': one_cycle_momentum,
}


def two_ratios(target_ratio: Any) -> tuple[float, float]:
    """The highest and the last ratio of a cycle, if one may be left out."""
    if isinstance(target_ratio, (int, float)):
        target_ratio = (target_ratio,)
    if len(target_ratio) == 1:
        target_ratio = (target_ratio[0], target_ratio[0] / 1e5)
    return target_ratio[0], target_ratio[1]


def _target(
    base: float, minimum: float | None, minimum_ratio: float | None
) -> float:
    if minimum_ratio is not None:
        return base * minimum_ratio
    return 0.0 if minimum is None else minimum


def _cosine(
    start: float, end: float, part: float, weight: float = 1.0
) -> float:
    return end + 0.5 * weight * (start - end) * (cos(pi * part) + 1)


def _line(start: float, end: float, part: float) -> float:
    return start + (end - start) * part


_ANNEALING: dict[str, Callable[[float, float, float], float]] = {
    'cos': _cosine,
    'linear': _line,
}


def _in_phases(phases: Sequence[Phase], done: int, strategy: str) -> float:
    start = 0.0
    for end, first, last in phases:  # noqa: B007
        if done <= end:
            break
        start = end
    # A phase of no length is over as soon as it begins.
    part = (done - start) / (end - start) if end > start else 1.0
    return _ANNEALING[strategy](first, last, part)
