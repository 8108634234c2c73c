"""What is wrong with a run, before anything is done about it."""

from __future__ import annotations

from dataclasses import dataclass

from mmstable.events import Culprit, Fault


@dataclass(frozen=True)
class Incident:
    """Something that calls for an action.

    Args:
        fault (Fault): What it is.
        reason (str): The same in words.
        since (int): The iteration that it began with.
        subject (str): What was found bad: 'loss', 'grad_norm', or the name
            of an optimizer wrapper. Defaults to ''.
        culprits (tuple[Culprit]): Entries of the state that are not finite.
            Defaults to ().
    """

    fault: Fault
    reason: str
    since: int
    subject: str = ''
    culprits: tuple[Culprit, ...] = ()
