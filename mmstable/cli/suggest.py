"""Which word, or which file, did the user probably mean?"""

from __future__ import annotations

import os
from collections.abc import Iterable

from mmstable.messages import _
from mmstable.settings import DID_YOU_MEAN, nearest


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence with the nearest words, or nothing at all."""
    return suggest(nearest(word, known))


def suggest(words: list[str]) -> str:
    """A sentence that offers these words, or nothing without any."""
    return _(DID_YOU_MEAN, words=words) if words else ''


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
