"""``mmstable doctor``: say whether this machine is fit to train."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import mmstable.cli.command as cli
from mmstable.messages import N_, _, printable

if TYPE_CHECKING:
    from mmstable.doctor import MachineTest
    from mmstable.doctor.examine import Report

# Here, since the tests themselves take long to import.
TESTS = (
    'versions',
    'host',
    'disk',
    'clock',
    'precision',
    'allocation',
    'arithmetic',
    'gpus',
    'xid',
    'processes',
)
# Seconds to compute, on each device.
_SHORT_S, _LONG_S = 3.0, 120.0


def doctor(args: argparse.Namespace) -> int:
    """Test the machine, and return the exit code."""
    from mmstable.doctor import Plan, examine
    from mmstable.doctor.device import as_block
    from mmstable.doctor.gpus import check_log

    if args.log is not None:
        # Before minutes go by.
        check_log(args.log)
    if not os.path.isdir(args.work_dir):
        raise cli.usage_error(
            '--work-dir: no folder {path}', path=args.work_dir
        )
    wanted = ('versions',) if args.device else args.only
    tests = [o for o in examine.TESTS if wanted is None or o.id in wanted]
    if args.device:
        tests.append(examine.DEVICE)
    plan = Plan(
        folder=args.work_dir,
        log=args.log,
        seconds=_LONG_S if args.long else _SHORT_S,
        is_long=args.long,
    )

    def begin(test: MachineTest) -> AbstractContextManager[None]:
        """Say which test begins, and that it goes on."""
        label = _(test.label)
        number, count = tests.index(test) + 1, len(tests)
        text = N_('test {number} of {count}: {name}')
        cli.tell(text, number=number, count=count, name=label)
        return cli.working(label, is_said=True)

    report = examine.examine(plan, tests, begin)
    code = cli.exit_code(report.findings)
    if args.json:
        print(_as_json(report, code))
        return code
    cli.show(_facts(report), *_lines(report))
    if args.device:
        facts = [one for held in report.facts.values() for one in held]
        cli.show(_('To paste into an issue:'), *as_block(facts))
    return code


def _facts(report: Report) -> Any:
    rows: list[Sequence[str] | None] = []
    for test, facts in report.facts.items():
        name = _(test.label)
        for one in facts:
            rows.append((name, one.device, one.label, one.value))
            name = ''
        rows.append(None)
    return cli.table(rows, title=_('This machine'))


def _lines(report: Report) -> Iterator[Any]:
    """Findings, what could not be looked at, and the verdict."""
    for one in report.findings:
        yield from cli.finding_lines(one)
    if report.not_seen:
        yield _('Not looked at:')
        for part in report.not_seen:
            yield f'    {part.what}: {printable(part.why, 400)}'
    yield _verdict(report)


def _verdict(report: Report) -> str:
    """One line on the machine."""
    text = {
        0: N_('Verdict: fit to train; {counts}, {unseen} not looked at.'),
        cli.EXIT_WARNINGS: N_(
            'Verdict: fit to train, with doubts; {counts}, {unseen} not '
            'looked at.'
        ),
        cli.EXIT_ERRORS: N_(
            'Verdict: do not train here yet; {counts}, {unseen} not looked at.'
        ),
    }[cli.exit_code(report.findings)]
    counts = cli.count_findings(report.findings)
    return _(text, counts=counts, unseen=len(report.not_seen))


def _as_json(report: Report, code: int) -> str:
    content = {
        'version': 1,
        'exit_code': code,
        'verdict': _verdict(report),
        'findings': [one.as_dict() for one in report.findings],
        'not_seen': [one._asdict() for one in report.not_seen],
        'facts': {
            test.id: [one._asdict() for one in facts]
            for test, facts in report.facts.items()
        },
    }
    return json.dumps(content, indent=2, ensure_ascii=False)


COMMAND = cli.Command(
    doctor,
    (
        cli.option(
            '--only',
            'do only these tests, of {names}',
            nargs='+',
            choices=TESTS,
            metavar='TEST',
        ),
        cli.flag(
            '--long',
            'compute for two minutes on each device, and test half of the RAM',
        ),
        cli.flag(
            '--device',
            'train, break and resume a small model on the device of this '
            'machine, for a minute, and print the outcome for an issue',
        ),
        cli.option(
            '--work-dir',
            'folder whose disk to test, the current one by default',
            default='.',
            metavar='FOLDER',
        ),
        cli.option(
            '--log',
            'read Xids from this file, not from the kernel',
            metavar='FILE',
        ),
        cli.flag('--json', 'print everything as JSON'),
    ),
    'Say whether this machine is fit to train, and what is wrong with it. '
    'Takes about half a minute. Memory, disk and devices are tried out; '
    'memory of a GPU that others use is left alone. Exit codes: 0 fit, '
    '{warnings} warnings, {errors} errors, 2 a mistake on the command line.',
    {'warnings': cli.EXIT_WARNINGS, 'errors': cli.EXIT_ERRORS},
    reads_config=False,
)
