"""What somebody does to a run while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mmstable.events.event import Event


@dataclass(frozen=True)
class LiveChange(Event):
    """A request to a running training, through ``LiveProbeHook``.

    Args:
        what (str): 'lr', 'clip', 'save', 'stop', or 'code' for Python code
            that was run, whatever it has changed.
        rank (int): The process that tells. Defaults to 0.
        wrapper (str): The optimizer wrapper that it is about, if it is about
            one. Defaults to ''.
        before (float, optional): The learning rate of its first group, or
            the clip limit, if that was a number. Defaults to None.
        after (float, optional): The same from now on. Defaults to None.
        text (str): The beginning of the code. Defaults to ''.
    """

    event: ClassVar[str] = 'live_change'

    what: str
    rank: int = 0
    wrapper: str = ''
    before: float | None = None
    after: float | None = None
    text: str = ''
