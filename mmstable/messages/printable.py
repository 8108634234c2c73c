"""Show text that somebody else wrote, without letting it act."""

from __future__ import annotations

import reprlib

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def printable(text: object, limit: int = 500) -> str:
    """A text as one line that is safe to print and to log.

    What Python does not call printable is shown as an escape, as ``repr``
    shows it: control characters, terminal codes, line separators, characters
    that turn the direction of writing, lone surrogates.

    Args:
        text (object): The text, or anything that has one.
        limit (int): Characters to show; the rest is counted.
            Defaults to 500.
    """
    whole = str(text)
    shown = whole[:limit]
    if not shown.isprintable():
        shown = ''.join(map(_escape, shown))
    if len(whole) > limit:
        shown += f'... ({len(whole) - limit} more characters)'
    return shown


def short_repr(value: object) -> str:
    """A value as ``repr`` shows it, however long or deep it is.

    Args:
        value (object): Numbers, strings, lists, dicts and the like.
    """
    return printable(_SHORT.repr(value))


def _escape(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]
