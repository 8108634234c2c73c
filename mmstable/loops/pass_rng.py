"""The random state that a pass over the data starts from.

A loader draws a seed for its workers, and some samplers their order, when a
pass starts. To start the same pass again, they have to see the same state.
"""

from __future__ import annotations

from typing import Any

from torch import Generator
from torch.utils.data import DataLoader

from mmstable.run_state.data_position import sampler_of
from mmstable.run_state.rng import capture_rng, restore_rng


def capture_pass_rng(dataloader: DataLoader) -> dict[str, Any]:
    """The state of all generators, the loader's own included."""
    return {**capture_rng(), **own_states(dataloader)}


def own_states(dataloader: DataLoader) -> dict[str, Any]:
    """The state of the generators that only the loader has."""
    own = [one.get_state() for one in _own_generators(dataloader)]
    return {'generators': own}


def restore_pass_rng(dataloader: DataLoader, state: dict[str, Any]) -> None:
    """Bring back what :func:`capture_pass_rng` saw."""
    restore_rng(state)
    own = state.get('generators', [])
    for generator, saved in zip(_own_generators(dataloader), own):
        generator.set_state(saved.cpu())


def _own_generators(dataloader: DataLoader) -> list[Generator]:
    found = [
        getattr(owner, 'generator', None)
        for owner in (dataloader, sampler_of(dataloader))
    ]
    return [one for one in found if isinstance(one, Generator)]
