"""Keys that look like old ones, and are none."""

from __future__ import annotations

import difflib

from mmstable.legacy.config.draft import Draft
from mmstable.legacy.config.keys import OLD_KEYS

# High enough to let variables like `dataset` or `optimizer_cfg` pass.
_LIKENESS = 0.9


def find_misspelt(draft: Draft) -> None:
    """List them. mmcv did not mind, but their author would."""
    for key in draft.settings:
        if key in draft.origins or key in OLD_KEYS:
            continue
        near = difflib.get_close_matches(key, OLD_KEYS, 1, _LIKENESS)
        if near:
            draft.leave(
                key,
                'neither mmcv nor mmengine reads a key of this name. Did '
                f'you mean {near[0]}?',
            )
