"""What did the user probably mean?"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence with the names nearest to ``name``, or nothing at all."""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f' Did you mean {" or ".join(near)}?' if near else ''


def near_files(path: str) -> str:
    """Like :func:`did_you_mean`, for a file that does not exist."""
    folder, name = os.path.split(path)
    try:
        siblings = os.listdir(folder or '.')
    except OSError:
        return _near_folder(folder)
    near = difflib.get_close_matches(name, siblings, n=3, cutoff=0.6)
    return did_you_mean(path, (os.path.join(folder, n) for n in near))


def _near_folder(folder: str) -> str:
    parent = os.path.dirname(folder)
    if not os.path.isdir(parent or '.'):
        return ''
    folders = (
        os.path.join(parent, name) for name in os.listdir(parent or '.')
    )
    return did_you_mean(folder, filter(os.path.isdir, folders))
