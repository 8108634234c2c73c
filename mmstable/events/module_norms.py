"""Norms of gradients by module, out of those that every step measures."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mmstable.events.step_queue import StepQueue
from mmstable.numerics.grad_health import combined_norm

MOST_MODULES = 24
_DEEPEST = 3


def newest_module_norms(steps: StepQueue) -> dict[str, float]:
    """Norms of the newest applied step, before clipping.

    Args:
        steps (StepQueue): The steps of an optimizer wrapper.
    """
    if steps.norms is None:
        return {}
    names, params, norms, magnification, order = steps.norms
    found = {
        names[param]: norm / magnification
        for param, norm in zip(params, norms.tolist())
    }
    return by_module(found, order)


def by_module(norms: Mapping[str, float], order: float) -> dict[str, float]:
    """One norm for each module, as deep as there is room for all.

    Args:
        norms (Mapping): Finite or not, by the names of parameters.
        order (float): The order of the norm.
    """
    groups: dict[str, list[float]] = {}
    for depth in range(_DEEPEST, 0, -1):
        groups = {}
        for name, norm in norms.items():
            module = '.'.join(name.split('.')[:-1][:depth])
            groups.setdefault(module, []).append(norm)
        if len(groups) <= MOST_MODULES:
            break
    first = list(groups.items())[:MOST_MODULES]
    joined = {name: combined_norm(held, order) for name, held in first}
    return {name: n for name, n in joined.items() if math.isfinite(n)}
