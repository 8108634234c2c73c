"""The thread that trains, seen from other threads."""

from __future__ import annotations

import sys
import threading
from types import FrameType

from mmstable.liveness.calls import Call, calls_of
from mmstable.liveness.phases import ENDED, find_phase


class TrainingThread:
    """The thread that makes this object, and trains."""

    def __init__(self) -> None:
        self.ident = threading.get_ident()

    @property
    def is_current(self) -> bool:
        """Whether it is the thread that asks."""
        return threading.get_ident() == self.ident

    def frame(self) -> FrameType | None:
        """Where it is. Not to be kept: it has all variables."""
        return sys._current_frames().get(self.ident)

    def calls(self) -> list[Call]:
        """What it calls, the outermost first."""
        return calls_of(self.frame())

    def has_ended(self) -> bool:
        """Whether it does not train any more.

        mmengine's own loops tell no hook of an exception.
        """
        return find_phase(self.calls()).name == ENDED
