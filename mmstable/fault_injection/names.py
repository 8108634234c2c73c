"""Names in a config, and what they fit."""

from __future__ import annotations

import re
from collections.abc import Collection

from mmstable.settings import no_match


def choose(setting: str, text: str, names: Collection[str]) -> list[str]:
    """The name itself, or else all names that match as a whole."""
    if text in names:
        return [text]
    pattern = re.compile(text)
    chosen = [name for name in names if pattern.fullmatch(name)]
    if not chosen:
        raise ValueError(no_match(setting, text, names))
    return chosen
