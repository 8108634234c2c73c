"""What has the NVIDIA driver complained about in the kernel's log?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mmstable.doctor.items import Item, Plan, fact, not_seen
from mmstable.doctor.kernel_log import kernel_log
from mmstable.doctor.xid_table import (
    ADVICE,
    KINDS,
    MEANINGS,
    OFF_THE_BUS,
    SOURCE,
    TEXTS,
    UNKNOWN,
)
from mmstable.finding import Finding
from mmstable.messages import _
from mmstable.messages.printable import printable

# Old drivers leave out 'PCI:', the process or its name.
_XID = re.compile(
    r'NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:'
    r'[0-9a-fA-F]{2})(?:\.\d)?[^)]{0,40}\): (?P<code>\d{1,4})\b'
)
_OFF = re.compile(r'NVRM:.{0,200}fallen off the bus', re.I)
_BUS = re.compile(r'\b([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})\b')
_LONGEST = 300


@dataclass
class Complaint:
    """Lines of one kind about one GPU.

    Args:
        code (int, optional): The Xid; None if the GPU has fallen off the
            bus and no number was given.
        bus (str): Where the GPU is; '' if it is not said.
        count (int): How many lines.
        line (str): The last of them.
    """

    code: int | None
    bus: str
    count: int
    line: str


def xid(plan: Plan) -> Iterator[Item]:
    """Read the kernel's log, and tell what the driver has said there."""
    log = kernel_log(plan.log)
    if not log.source:
        yield not_seen('xid', '; '.join(log.refused))
        return
    found = complaints(log.lines)
    yield fact('kernel_log', log.source)
    yield fact('xid_lines', sum(one.count for one in found))
    for one in found:
        yield judge(one)


def complaints(lines: Iterable[str]) -> list[Complaint]:
    """The driver's complaints, in the order of their first lines.

    Args:
        lines (Iterable[str]): Of the kernel's log.
    """
    found: dict[tuple[int | None, str], Complaint] = {}
    for line in lines:
        key = _read(line)
        if key is None:
            continue
        one = found.setdefault(key, Complaint(*key, count=0, line=''))
        one.count += 1
        one.line = line.strip()
    lost = {bus for code, bus in found if code == 79}
    # The same is often said again in words.
    return [
        one
        for one in found.values()
        if one.code is not None or not lost or (one.bus not in {*lost, ''})
    ]


def _read(line: str) -> tuple[int | None, str] | None:
    match = _XID.search(line)
    if match is not None:
        return int(match['code']), match['bus'].lower()
    if _OFF.search(line) is None:
        return None
    bus = _BUS.search(line)
    return None, bus[1].lower() if bus else ''


def judge(one: Complaint) -> Finding:
    """What such lines mean.

    Args:
        one (Complaint): The lines.
    """
    if one.code is None:
        name, meaning = 'off_bus', OFF_THE_BUS
    elif one.code in MEANINGS:
        name, meaning = str(one.code), MEANINGS[one.code]
    else:
        name, meaning = 'unknown', UNKNOWN
    what = _(TEXTS[name])
    if one.code is not None:
        what = _('Xid {code}: {meaning}', code=one.code, meaning=what)
    line = printable(one.line, _LONGEST)
    return Finding(
        id=f'xid_{name if one.code is None else one.code}',
        severity=meaning.severity,
        path=f'GPU {one.bus}'.strip(),
        what=_(
            '{what} ({count:line|lines}), at last: {line}',
            what=what,
            count=one.count,
            line=line,
        ),
        why=_(KINDS[meaning.kind]),
        fix=_(ADVICE[meaning.advice]),
        source=SOURCE,
    )
