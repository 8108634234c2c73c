"""Run the tests of the machine one after the other; survive exceptions."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Callable

from mmstable.doctor import Fact, MachineTest, NotSeen, Plan
from mmstable.doctor.compute import (
    allocation,
    arithmetic,
    precision,
    processes,
)
from mmstable.doctor.device import device
from mmstable.doctor.gpus import gpus, xid
from mmstable.doctor.host import clock, disk, host, versions
from mmstable.finding import Finding, Severity
from mmstable.messages import N_, _

# GPUs come after the tests that heat them: an idle link is a slow link.
TESTS = [
    MachineTest('versions', N_('versions'), versions),
    MachineTest('host', N_('host'), host),
    MachineTest('disk', N_('disk'), disk),
    MachineTest('clock', N_('clock'), clock),
    MachineTest('precision', N_('half precision'), precision),
    MachineTest('allocation', N_('host and GPU memory'), allocation),
    MachineTest('arithmetic', N_('matrix products'), arithmetic),
    MachineTest('gpus', N_('state of the GPUs'), gpus),
    MachineTest('xid', N_('kernel log'), xid),
    MachineTest('processes', N_('start of DDP'), processes),
]


# Takes a minute, so it is done only if it is asked for.
DEVICE = MachineTest('device', N_('self-test of mmstable'), device)


@dataclass
class Report:
    """The results of all tests.

    Args:
        facts (dict[MachineTest, list[Fact]]): The facts of each test.
        findings (list[Finding]): The worst first, once all is done.
        not_seen (list[NotSeen]): Parts that could not be tested.
    """

    facts: dict[MachineTest, list[Fact]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    not_seen: list[NotSeen] = field(default_factory=list)


def examine(
    plan: Plan,
    tests: Iterable[MachineTest],
    around: Callable[[MachineTest], AbstractContextManager[None]],
) -> Report:
    """Run the tests.

    Args:
        plan (Plan): How.
        tests (Iterable[MachineTest]): Which.
        around (Callable): Returns a context for each.
    """
    report = Report()
    for test in tests:
        with around(test):
            _run(test, plan, report)
    order = list(Severity)
    report.findings.sort(key=lambda one: order.index(one.severity))
    return report


def _run(test: MachineTest, plan: Plan, report: Report) -> None:
    facts = report.facts.setdefault(test, [])
    try:
        for item in test.run(plan):
            if isinstance(item, Finding):
                report.findings.append(item)
            elif isinstance(item, NotSeen):
                report.not_seen.append(item)
            else:
                facts.append(item)
    except Exception as error:
        # A sick machine fails in ways that no test foresees.
        why = f'{type(error).__name__}: {error}'
        report.not_seen.append(NotSeen(_(test.label), why))
