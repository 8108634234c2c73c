"""Which of these does a name or a regular expression mean?"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection


def check_pattern(setting: str, text: object) -> None:
    """Raise an error for what is neither a name nor an expression."""
    if not isinstance(text, str) or not text:
        raise TypeError(
            f'`{setting}` must be a name or a regular expression, got {text!r}'
        )
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(
            f'`{setting}` {text!r} is not a regular expression: {error}'
        ) from error


def choose(setting: str, text: str, names: Collection[str]) -> list[str]:
    """The name itself, or else all names that match as a whole."""
    if text in names:
        return [text]
    pattern = re.compile(text)
    chosen = [name for name in names if pattern.fullmatch(name)]
    if not chosen:
        raise ValueError(no_match(setting, text, names))
    return chosen


def no_match(setting: str, text: str, names: Collection[str]) -> str:
    """What to say of a name that is not there, with near ones."""
    near = difflib.get_close_matches(text, list(names), n=3, cutoff=0.5)
    if near:
        hint = f'close to it: {", ".join(map(repr, near))}'
    else:
        some = list(names)[:5]
        hint = f'there is {", ".join(map(repr, some)) or "nothing"}'
        hint += ', ...' if len(names) > len(some) else ''
    return f'`{setting}` {text!r} is not there; {hint}'
