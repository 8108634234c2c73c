"""State dicts of safe wrappers, and how those of others are taken in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

# Which kernel runs is a matter of this machine's config, not of the run that
# wrote the checkpoint; torch would let the checkpoint decide.
_IMPLEMENTATION = ('fused', 'foreach', 'capturable', 'differentiable')


def keep_configured_implementation(
    optimizer: Optimizer, state: Mapping[str, Any]
) -> dict[str, Any]:
    """A copy of an optimizer's state dict that runs the configured kernels.

    Args:
        optimizer (Optimizer): The optimizer that is going to load it.
        state (Mapping): The state dict. It is not changed.
    """
    groups = [
        {**saved, **_pick(configured)}
        for saved, configured in zip(
            state['param_groups'], optimizer.param_groups
        )
    ]
    # Left to torch, whose error names the mismatch.
    groups.extend(state['param_groups'][len(groups) :])
    return {**state, 'param_groups': groups}


def _pick(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: group[key] for key in _IMPLEMENTATION if key in group}
