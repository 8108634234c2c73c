"""Which of the gradients at hand are clipped together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmstable.messages import _
from mmstable.numerics import grad_health
from mmstable.numerics.clipping import ClipGroup, NormClip
from mmstable.numerics.module_names import is_inside, module_names
from mmstable.numerics.unit_clip import UnitClip
from mmstable.settings import no_match


@dataclass(frozen=True)
class Part:
    """Gradients that share one factor.

    Args:
        group (ClipGroup, optional): Who limits their norm; None if nobody.
        indices (list[int]): Their places in the list of gradients.
    """

    group: ClipGroup | None
    indices: list[int]

    @property
    def name(self) -> str:
        """What to call it in a log."""
        return 'rest' if self.group is None else self.group.name

    def limit(self) -> float | None:
        """The largest norm they may have now; None for any."""
        return None if self.group is None else self.group.limit.current()


class ClipPlan:
    """The parts of one list of gradients.

    Args:
        parts (list[Part]): The parts; together they are all gradients.
        norm_type (float): Order of the norms.
    """

    def __init__(self, parts: list[Part], norm_type: float = 2.0) -> None:
        self.parts = parts
        self.norm_type = norm_type
        self._index_tensors: list[Tensor] = []

    def part_norms(self, norms: Tensor) -> Tensor:
        """One norm for each part, from one for each gradient."""
        if len(self.parts) == 1:
            return grad_health.total_norm(norms, self.norm_type).reshape(1)
        if not self._index_tensors:
            self._index_tensors = [
                torch.tensor(
                    part.indices, device=norms.device, dtype=torch.long
                )
                for part in self.parts
            ]
        return torch.stack(
            [
                grad_health.total_norm(norms[index], self.norm_type)
                for index in self._index_tensors
            ]
        )


def make_plan(
    clip: object, names: Sequence[str], keep_empty: bool = False
) -> ClipPlan:
    """Sort gradients into the groups of a clip.

    Args:
        clip (Clip, optional): How to clip.
        names (Sequence[str]): Names of the parameters of the gradients.
        keep_empty (bool): Whether to keep groups without any gradient.
            Defaults to False.
    """
    everything = list(range(len(names)))
    if not isinstance(clip, NormClip):
        return ClipPlan([Part(None, everything)])
    parts, taken = [], set()
    for group in clip.groups:
        if group.modules:
            indices = [
                index
                for index, name in enumerate(names)
                if is_inside(name, group.modules)
            ]
            parts.append(Part(group, indices))
            taken.update(indices)
    rest = [index for index in everything if index not in taken]
    default = [group for group in clip.groups if not group.modules]
    parts.append(Part(default[0] if default else None, rest))
    parts = [part for part in parts if part.indices or keep_empty]
    return ClipPlan(parts, clip.norm_type)


def check_modules(where: str, clip: object, names: Sequence[str]) -> None:
    """Refuse names that match nothing, or the same parameter twice.

    Args:
        where (str): What to call the place of the settings in an error.
        clip (Clip, optional): How to clip.
        names (Sequence[str]): All parameters of the optimizer.
    """
    if isinstance(clip, UnitClip):
        for module in clip.exclude:
            if not any(is_inside(name, [module]) for name in names):
                text = no_match('exclude', module, module_names(names))
                raise ValueError(f'{where}: {text}')
    if not isinstance(clip, NormClip):
        return
    owner: dict[str, str] = {}
    for index, group in enumerate(clip.groups):
        for module in group.modules:
            matches = [name for name in names if is_inside(name, [module])]
            if not matches:
                text = no_match('module_name', module, module_names(names))
                raise ValueError(f'{where}: configs[{index}]: {text}')
            for name in matches:
                if name in owner:
                    text = _(
                        '{module!r} overlaps with {other!r}: both hold '
                        '{name!r}.',
                        module=module,
                        other=owner[name],
                        name=name,
                    )
                    raise ValueError(f'{where}: configs[{index}]: {text}')
                owner[name] = module
