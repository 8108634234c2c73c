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
        subject (str): What was found bad: 'loss' or 'grad_norm', behind the
            name of its optimizer wrapper if there are several, or such a
            name alone. Defaults to ''.
        culprits (tuple[Culprit]): Entries of the state that are not finite.
            Defaults to ().
        is_series (bool): Whether it is about too many bad steps. Defaults to
            False.
        is_skipped (bool): Whether the step that it is about was skipped.
            Defaults to False.
        blames_lr (bool): Whether a lower learning rate may help. Defaults to
            True.
    """

    fault: Fault
    reason: str
    since: int
    subject: str = ''
    culprits: tuple[Culprit, ...] = ()
    is_series: bool = False
    is_skipped: bool = False
    blames_lr: bool = True
