"""What the memory presets of ``configs/_base_/memory`` change."""

from __future__ import annotations

from typing import NamedTuple


class Preset(NamedTuple):
    """A preset, as far as memory is concerned.

    Args:
        name (str): Its file.
        dtype (str, optional): What autocast casts to; None for what the
            config says.
        recomputes (bool): Whether the backbone keeps no activations.
        accumulation (int): Batches that make one step; the batch is divided
            by it, so that a step sees as many samples as before.
    """

    name: str
    dtype: str | None
    recomputes: bool
    accumulation: int


# The one that costs least time first.
PRESETS = (
    Preset('balanced', 'bfloat16', True, 1),
    Preset('max_saving', 'bfloat16', True, 2),
    Preset('conservative', None, True, 4),
)
