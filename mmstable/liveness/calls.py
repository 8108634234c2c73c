"""What a thread is calling: from its frames, or from a text about them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import dropwhile, takewhile
from types import FrameType
from typing import NamedTuple

from mmstable.forensics.frames import Line, is_shown

_DUMPED = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
# Where mmengine calls a hook, and what it calls it there.
_CALLER, _HOOK = 'call_hook', 'hook'


class Call(NamedTuple):
    """A function that is running.

    Args:
        file (str): Where it is.
        line (int): Where it has come to.
        function (str): Its name.
        hook (str): The class of the hook that mmengine calls there. Defaults
            to ''.
    """

    file: str
    line: int
    function: str
    hook: str = ''

    def __str__(self) -> str:
        return str(Line(self.file, self.line))


def calls_of(frame: FrameType | None) -> list[Call]:
    """All calls that have led to a frame, the outermost first."""
    calls = []
    while frame is not None:
        code = frame.f_code
        hook = ''
        if code.co_name == _CALLER:
            # Of no other frame: the variables of some are large, and would
            # be kept for as long as it runs.
            hook = type(frame.f_locals.get(_HOOK)).__name__
        calls.append(
            Call(code.co_filename, frame.f_lineno or 0, code.co_name, hook)
        )
        frame = frame.f_back
    return calls[::-1]


def read_dump(text: str) -> list[Call]:
    """The calls of the first thread in a text as ``faulthandler`` writes it.

    Returns:
        list[Call]: The outermost first.
    """
    found = map(_DUMPED.match, text.splitlines())
    first = takewhile(bool, dropwhile(lambda one: one is None, found))
    calls = [Call(one[1], int(one[2]), one[3]) for one in first if one]
    return calls[::-1]


def blamed(calls: Sequence[Call]) -> Call | None:
    """The innermost call outside of torch and Python itself."""
    shown = (call for call in reversed(calls) if is_shown(call.file))
    return next(shown, None)
