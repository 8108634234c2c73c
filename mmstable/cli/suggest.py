"""Which file did the user probably mean?"""

from __future__ import annotations

import os

from mmstable.settings import did_you_mean, nearest


def near_files(path: str) -> str:
    """Like :func:`did_you_mean`, for a file that does not exist."""
    folder, name = os.path.split(path)
    try:
        siblings = os.listdir(folder or '.')
    except OSError:
        return _near_folder(folder)
    near = nearest(name, siblings)
    return did_you_mean(path, (os.path.join(folder, n) for n in near))


def _near_folder(folder: str) -> str:
    parent = os.path.dirname(folder)
    if not os.path.isdir(parent or '.'):
        return ''
    folders = (
        os.path.join(parent, name) for name in os.listdir(parent or '.')
    )
    return did_you_mean(folder, filter(os.path.isdir, folders))
