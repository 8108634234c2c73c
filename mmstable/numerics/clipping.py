"""How far gradients are cut back, as plain arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from mmstable.numerics.grad_health import stored_values

# torch.nn.utils.clip_grad_norm_ adds this to the norm it divides by.
_EPSILON = 1e-6


def excess(norm: Tensor, limit: float) -> Tensor:
    """What gradients of this norm must be divided by, at least 1."""
    return norm.add(_EPSILON).div_(limit).clamp_(min=1.0)


def coefficient(norm: float, limit: float | None) -> float:
    """What gradients of this norm are multiplied by, at most 1."""
    return 1.0 if limit is None else min(1.0, limit / (norm + _EPSILON))


class Limit(Protocol):
    """The largest norm that gradients may have."""

    def current(self) -> float | None:
        """The limit for the next step; None for no limit."""

    def observe(self, norm: float) -> None:
        """Hear of the norm, before clipping, of an applied step."""

    def state_dict(self) -> dict[str, Any]:
        """What it has learned: `SAVED_LIMIT` checks it."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what another has learned."""


@dataclass(frozen=True)
class FixedLimit:
    """A limit that does not move.

    Args:
        max_norm (float): The limit.
    """

    max_norm: float

    def current(self) -> float:
        """The limit."""
        return self.max_norm

    def observe(self, norm: float) -> None:
        """Nothing to learn."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing was learned."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to take over."""

    def __str__(self) -> str:
        return f'max_norm={self.max_norm:g}'


@dataclass(frozen=True)
class ClipGroup:
    """Parameters that are clipped together, by the norm of all of them.

    Args:
        limit (Limit): The largest norm allowed.
        modules (tuple[str]): The modules they are in; none means all that
            no other group has. Defaults to ().
    """

    limit: Limit
    modules: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What to call it in a log."""
        return '+'.join(self.modules) or 'all'


@dataclass(frozen=True)
class NormClip:
    """Shrink the gradients of each group to the group's limit.

    Args:
        groups (tuple[ClipGroup]): The groups.
        norm_type (float): Order of the norms. Defaults to 2.0.
    """

    groups: tuple[ClipGroup, ...]
    norm_type: float = 2.0

    def __str__(self) -> str:
        order = '' if self.norm_type == 2 else f', norm_type={self.norm_type}'
        if len(self.groups) == 1 and not self.groups[0].modules:
            return f'{self.groups[0].limit}{order}'
        parts = [f'{group.name}: {group.limit}' for group in self.groups]
        return f'[{"; ".join(parts)}]{order}'


@dataclass(frozen=True)
class ValueClip:
    """Cut every single gradient value to a range around zero.

    Args:
        clip_value (float): The largest absolute value allowed.
    """

    clip_value: float

    def shrink_(
        self,
        names: Sequence[str],
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        magnification: float,
    ) -> None:
        """Clip gradients that are ``magnification`` times too large."""
        values = [stored_values(grad) for grad in grads]
        torch._foreach_clamp_min_(values, -self.clip_value * magnification)
        torch._foreach_clamp_max_(values, self.clip_value * magnification)

    def __str__(self) -> str:
        return f'clip_value={self.clip_value:g}'
