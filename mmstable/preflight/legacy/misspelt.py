"""Keys that look like old ones, and are none."""

from __future__ import annotations

import difflib

from mmstable.preflight.legacy.draft import Draft
from mmstable.preflight.legacy.keys import OLD_KEYS

# High enough to let variables like `dataset` or `lr` pass.
_LIKENESS = 0.85


def find_misspelt(draft: Draft) -> None:
    """List them. mmcv did not mind, but their author would."""
    wanted = [key for key in OLD_KEYS if key not in draft.old_keys]
    for key in draft.settings:
        if key in draft.origins:
            continue
        near = difflib.get_close_matches(key, wanted, n=1, cutoff=_LIKENESS)
        if near:
            draft.leave(
                key,
                'neither mmcv nor mmengine reads a key of this name. Did '
                f'you mean {near[0]}?',
            )
