"""Which files may a checkpoint name?

mmengine deletes what ``best_ckpt`` and ``keep_ckpt_ids`` of a resumed
checkpoint name: files, and whole directories.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Any

_BEST = 'best_ckpt'
_SUFFIX = '.pth'


def drop_foreign_references(checkpoint: Any, folder: str) -> None:
    """Keep what names checkpoints in the folder of this one.

    A best checkpoint that lies elsewhere, as in the original of a copied
    folder, is looked for beside this one.

    Args:
        checkpoint (Any): What was loaded, changed in place.
        folder (str): Where it was loaded from.
    """
    hub = checkpoint.get('message_hub') if type(checkpoint) is dict else None
    info = hub.get('runtime_info') if isinstance(hub, dict) else None
    if not isinstance(info, dict):
        return
    keep_own_references(info, folder)


def keep_own_references(info: MutableMapping[str, Any], folder: str) -> None:
    """The same for the ``runtime_info`` of a message hub."""
    for key in [k for k in info if isinstance(k, str) and k.startswith(_BEST)]:
        own = _find_own(info[key], folder)
        if own is None:
            del info[key]
        else:
            info[key] = own
    kept = info.get('keep_ckpt_ids', [])
    if type(kept) is not list or any(type(one) is not int for one in kept):
        del info['keep_ckpt_ids']


def is_own(path: Any, folder: str) -> bool:
    """Whether a path names a checkpoint file that lies in a folder."""
    return (
        isinstance(path, str)
        and path.endswith(_SUFFIX)
        and os.path.isfile(path)
        and os.path.realpath(os.path.dirname(path)) == os.path.realpath(folder)
    )


def _find_own(path: Any, folder: str) -> str | None:
    if is_own(path, folder):
        return path
    if isinstance(path, str):
        beside = os.path.join(folder, os.path.basename(path))
        if is_own(beside, folder):
            return beside
    return None
