"""``mmstable doctor``: from a machine to findings."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mmstable.cli.command import say as say_for
from mmstable.cli.doctor_table import as_json, print_report
from mmstable.cli.finding_text import exit_code
from mmstable.cli.progress import working
from mmstable.doctor.examine import TESTS, examine
from mmstable.doctor.items import MachineTest, Plan
from mmstable.doctor.kernel_log import check_log
from mmstable.doctor.texts import PARTS
from mmstable.errors import UsageError
from mmstable.messages import _

# Seconds to compute, on each device.
_SHORT, _LONG = 3.0, 120.0


def doctor(args: argparse.Namespace) -> int:
    """Test the machine, and return the exit code."""
    if args.log is not None:
        # Before minutes go by.
        check_log(args.log)
    if not os.path.isdir(args.work_dir):
        raise UsageError(_('--work-dir: no folder {path}', path=args.work_dir))
    tests = [
        test for test in TESTS if args.only is None or test.id in args.only
    ]
    report = examine(_plan(args), tests, _Progress(tests))
    code = exit_code(report.findings)
    if args.json:
        print(as_json(report, code))
    else:
        print_report(report)
    return code


def _plan(args: argparse.Namespace) -> Plan:
    return Plan(
        folder=args.work_dir,
        log=args.log,
        seconds=_LONG if args.long else _SHORT,
        is_long=args.long,
    )


class _Progress:
    """Says which test is done, before it is, and that it goes on.

    Args:
        tests (Sequence[MachineTest]): All of them.
    """

    def __init__(self, tests: Sequence[MachineTest]) -> None:
        self._count = len(tests)
        self._done = 0

    @contextmanager
    def __call__(self, test: MachineTest) -> Iterator[None]:
        self._done += 1
        name = _(PARTS[test.id])
        text = _(
            'test {number} of {count}: {name}',
            number=self._done,
            count=self._count,
            name=name,
        )
        say_for('doctor', text)
        with working(name, is_said=True):
            yield
