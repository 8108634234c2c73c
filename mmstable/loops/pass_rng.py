"""The random state that a pass over the data starts from.

A loader draws a seed for its workers, and some samplers their order, when a
pass starts. To start the same pass again, they have to see the same state.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from mmstable.loops.own_generators import (
    own_generators,
    read_generator,
    write_generator,
)
from mmstable.run_state.rng import capture_rng, restore_rng


def capture_pass_rng(dataloader: DataLoader) -> dict[str, Any]:
    """The state of all generators, the loader's own included."""
    return {**capture_rng(), **own_states(dataloader)}


def own_states(dataloader: DataLoader) -> dict[str, Any]:
    """The state of the generators that only the loader has."""
    own = [read_generator(one) for one in own_generators(dataloader)]
    return {'generators': own}


def restore_pass_rng(dataloader: DataLoader, state: dict[str, Any]) -> None:
    """Bring back what :func:`capture_pass_rng` saw."""
    restore_rng(state)
    own = state.get('generators', [])
    for generator, saved in zip(own_generators(dataloader), own):
        write_generator(generator, saved)
