"""What may be printed, and in which colours?"""

from __future__ import annotations

import os
from typing import TextIO

_COLOURS = {'red': '31', 'yellow': '33', 'cyan': '36'}
_quiet = False


def be_quiet(quiet: bool) -> None:
    """Print results and errors only, or everything again."""
    global _quiet  # noqa: PLW0603
    _quiet = quiet


def is_quiet() -> bool:
    """Whether only results and errors are printed."""
    return _quiet


def shows_progress(stream: TextIO) -> bool:
    """Whether somebody is there to see a bar move."""
    return not _quiet and stream.isatty()


def paint(text: str, colour: str, stream: TextIO) -> str:
    """A text in a colour, unless the stream or the user wants none.

    Args:
        text (str): The text.
        colour (str): 'red', 'yellow' or 'cyan'; '' for none.
        stream (TextIO): Where it will be printed.
    """
    # https://no-color.org
    if not colour or os.environ.get('NO_COLOR') or not stream.isatty():
        return text
    if os.environ.get('TERM') == 'dumb':
        return text
    return f'\x1b[{_COLOURS[colour]}m{text}\x1b[0m'
