"""Do the tests, one after the other, whatever becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from mmstable.doctor.allocation import allocation
from mmstable.doctor.arithmetic import arithmetic
from mmstable.doctor.clock import clock
from mmstable.doctor.disk import disk
from mmstable.doctor.gpus import gpus
from mmstable.doctor.host import host
from mmstable.doctor.items import Fact, MachineTest, NotSeen, Plan, not_seen
from mmstable.doctor.precision import precision
from mmstable.doctor.processes import processes
from mmstable.doctor.versions import versions
from mmstable.doctor.xid import xid
from mmstable.finding import Finding, Severity

# GPUs come after the tests that heat them: an idle link is a slow link.
TESTS = [
    MachineTest('versions', versions),
    MachineTest('host', host),
    MachineTest('disk', disk),
    MachineTest('clock', clock),
    MachineTest('precision', precision),
    MachineTest('allocation', allocation),
    MachineTest('arithmetic', arithmetic),
    MachineTest('gpus', gpus),
    MachineTest('xid', xid),
    MachineTest('processes', processes),
]


@dataclass
class Report:
    """What all tests have told.

    Args:
        facts (dict[str, list[Fact]]): By the name of the test.
        findings (list[Finding]): The worst first, once all is done.
        not_seen (list[NotSeen]): What could not be looked at.
    """

    facts: dict[str, list[Fact]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    not_seen: list[NotSeen] = field(default_factory=list)


def examine(
    plan: Plan,
    tests: Iterable[MachineTest],
    around: Callable[[MachineTest], AbstractContextManager[None]],
) -> Report:
    """Do the tests.

    Args:
        plan (Plan): How.
        tests (Iterable[MachineTest]): Which.
        around (Callable): Gives a context for each.
    """
    report = Report()
    for test in tests:
        with around(test):
            _run(test, plan, report)
    order = list(Severity)
    report.findings.sort(key=lambda one: order.index(one.severity))
    return report


def _run(test: MachineTest, plan: Plan, report: Report) -> None:
    facts = report.facts.setdefault(test.id, [])
    try:
        for item in test.run(plan):
            if isinstance(item, Finding):
                report.findings.append(item)
            elif isinstance(item, NotSeen):
                report.not_seen.append(item)
            else:
                facts.append(item)
    except Exception as error:
        # A sick machine fails in ways nobody has thought of.
        why = f'{type(error).__name__}: {error}'
        report.not_seen.append(not_seen(test.id, why))
