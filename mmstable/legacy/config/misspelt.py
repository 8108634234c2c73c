"""Keys that look like old ones, and are none."""

from __future__ import annotations

from mmstable.legacy.config.draft import Draft
from mmstable.legacy.config.keys import OLD_KEYS
from mmstable.messages import _
from mmstable.settings import nearest

# High enough to let variables like `dataset` or `optimizer_cfg` pass.
_LIKENESS = 0.9


def find_misspelt(draft: Draft) -> None:
    """List them. mmcv did not mind, but their author would."""
    for key in draft.settings:
        if key in draft.origins or key in OLD_KEYS:
            continue
        near = nearest(key, OLD_KEYS, _LIKENESS)
        if near:
            draft.leave(
                key,
                _(
                    'neither mmcv nor mmengine reads a key of this name. Did '
                    'you mean {near: or }?',
                    near=near,
                ),
            )
