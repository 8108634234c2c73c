"""What a test of the machine can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Union

from mmstable.doctor.texts import FACTS, FINDINGS, PARTS
from mmstable.finding import Finding, Severity
from mmstable.messages import _


class Fact(NamedTuple):
    """Something that is neither good nor bad by itself.

    Args:
        id (str): Its name for programs.
        value (str): How it is.
        label (str): Its name for people.
        device (str): Which device has it; '' for the machine.
            Defaults to ''.
    """

    id: str
    value: str
    label: str
    device: str = ''


class NotSeen(NamedTuple):
    """Something that could not be looked at.

    Args:
        what (str): What it is.
        why (str): Why not.
    """

    what: str
    why: str


Item = Union[Fact, Finding, NotSeen]


@dataclass(frozen=True)
class Plan:
    """How to test.

    Args:
        folder (str): Where checkpoints would be written. Defaults to '.'.
        log (str, optional): A file to read in place of the kernel's log.
            Defaults to None.
        seconds (float): How long to compute, on each device.
            Defaults to 3.0.
        is_long (bool): Whether to take minutes. Defaults to False.
        patience (float): Seconds until processes that should find each other
            are given up. Defaults to 90.0.
    """

    folder: str = '.'
    log: str | None = None
    seconds: float = 3.0
    is_long: bool = False
    patience: float = 90.0


class MachineTest(NamedTuple):
    """A test, and its name on the command line.

    Args:
        id (str): The name.
        run (Callable): Does it.
    """

    id: str
    run: Callable[[Plan], Iterator[Item]]


def fact(id: str, value: object, device: str = '') -> Fact:
    """A fact with its label.

    Args:
        id (str): Its name, a key of ``FACTS``.
        value (object): How it is.
        device (str): Which device has it. Defaults to ''.
    """
    return Fact(id, str(value), _(FACTS[id]), device)


def found(id: str, severity: Severity, path: str, **fields: Any) -> Finding:
    """A finding with its texts.

    Args:
        id (str): Its name, a key of ``FINDINGS``.
        severity (Severity): How bad it is.
        path (str): Which part of the machine it is about.
        **fields: For the first text.
    """
    return Finding(
        id=id,
        severity=severity,
        path=path,
        what=_(FINDINGS[id].what, **fields),
        why=_(FINDINGS[id].why),
        fix=_(FINDINGS[id].fix),
    )


def not_seen(id: str, why: object) -> NotSeen:
    """Something that could not be looked at.

    Args:
        id (str): Its name, a key of ``PARTS``.
        why (object): Why not.
    """
    return NotSeen(_(PARTS[id]), str(why))
