"""Stop in the debugger where a bad value is born."""

from __future__ import annotations

import bdb
import pdb
import sys
from types import FrameType

from torch import Tensor

from mmstable.forensics.birth import Birth, Origin
from mmstable.forensics.frames import Place
from mmstable.messages import _
from mmstable.messages.printable import printable


class StopAtBirth:
    """Opens the debugger once, in the frame of the line to blame.

    Values can be looked at there; stepping on is not possible, because the
    line is still running.

    Args:
        culprit (Origin): What to wait for: an operation, or the first use of
            a tensor that was bad before.
    """

    def __init__(self, culprit: Origin) -> None:
        self._culprit = culprit
        self._has_stopped = False

    def on_birth(self, birth: Birth) -> None:
        """Stop, if it is the operation to blame."""
        culprit = self._culprit
        if isinstance(culprit, Birth) and (
            (birth.phase, birth.op, birth.place)
            == (culprit.phase, culprit.op, culprit.place)
        ):
            self._stop(birth)

    def watch(self, phase: str, op: str, place: Place, output: Tensor) -> None:
        """Stop, if a tensor is used here that was bad before."""
        culprit = self._culprit
        if not isinstance(culprit, Birth) and place == culprit.place:
            self._stop(culprit)

    def _stop(self, birth: Origin) -> None:
        if self._has_stopped:
            return
        self._has_stopped = True
        print(printable(birth, 4000))
        frame = _frame_of(birth.place)
        if frame is None:
            # A derivative: no line of the model is running.
            print(
                _(
                    'This is a derivative: no line of the model is running. '
                    '`p birth` shows what is known.'
                )
            )
            frame = sys._getframe()
        debugger = pdb.Pdb(nosigint=True)
        debugger.reset()
        debugger.interaction(frame, None)
        if debugger.quitting:
            raise bdb.BdbQuit


def _frame_of(place: Place) -> FrameType | None:
    """The frame that is at the innermost line of a place."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and place.lines:
        if (frame.f_code.co_filename, frame.f_lineno) == place.lines[0]:
            return frame
        frame = frame.f_back
    return None
