"""Test whether this machine is fit to train.

A test yields facts, findings, and gaps. It must work where training does not:
nothing here imports torch or mmengine before the test that needs it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Callable, NamedTuple, Union

from mmstable.finding import Finding, Severity
from mmstable.messages import _


class Fact(NamedTuple):
    """A reading that is neither good nor bad.

    Args:
        id (str): Its name for programs.
        value (str): The reading.
        label (str): Its name for people.
        device (str): The device it belongs to; '' for the machine.
            Defaults to ''.
    """

    id: str
    value: str
    label: str
    device: str = ''


class NotSeen(NamedTuple):
    """A part of the machine that could not be tested.

    Args:
        what (str): The part.
        why (str): The reason.
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
    """A test of the machine.

    Args:
        id (str): Its name on the command line.
        label (str): Its name for people, in English.
        run (Callable): Runs it.
    """

    id: str
    label: str
    run: Callable[[Plan], Iterator[Item]]


def found(id: str, path: str, **fields: Any) -> Finding:
    """Make a finding of ``data/findings.json``.

    Args:
        id (str): Its name there.
        path (str): The part of the machine it is about.
        **fields: Values for its text.
    """
    row = read_data('findings.json')[id]
    return Finding(
        id=id,
        severity=Severity(row['severity']),
        path=path,
        what=_(row['what'], **fields),
        why=_(row['why']),
        fix=_(row['fix']),
    )


@cache
def read_data(name: str) -> Any:
    """Read a table of ``mmstable/doctor/data``.

    Its English texts are translated like those of the code: strings at or
    below the keys "meaning", "what", "why" and "fix".

    Args:
        name (str): The file's name.
    """
    path = Path(__file__).parent / 'data' / name
    return json.loads(path.read_text(encoding='utf-8'))
