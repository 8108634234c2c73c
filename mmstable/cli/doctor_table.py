"""What the doctor has found, for people and for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from mmstable.cli.finding_text import finding_lines
from mmstable.doctor.examine import Report
from mmstable.doctor.texts import PARTS
from mmstable.finding import Severity
from mmstable.messages import _
from mmstable.messages.printable import printable

_LONGEST = 400


def print_report(report: Report) -> None:
    """Print all of it, and the verdict last."""
    from rich.console import Console

    # Wide enough for the table where there is no terminal.
    console = Console(soft_wrap=True)
    console.print(_facts(report))
    for line in lines(report):
        console.print(line, markup=False, highlight=False)


def lines(report: Report) -> Iterator[str]:
    """Findings, what could not be looked at, and the verdict."""
    for one in report.findings:
        yield from finding_lines(one)
    if report.not_seen:
        yield _('Not looked at:')
        for part in report.not_seen:
            yield f'    {part.what}: {printable(part.why, _LONGEST)}'
    yield verdict(report)


def verdict(report: Report) -> str:
    """One line on the machine."""
    counts = Counter(one.severity for one in report.findings)
    fields = dict(
        errors=counts[Severity.ERROR],
        warnings=counts[Severity.WARNING],
        hints=counts[Severity.HINT],
        unseen=len(report.not_seen),
    )
    if counts[Severity.ERROR]:
        return _(
            'Verdict: do not train here yet; {errors:error|errors}, '
            '{warnings:warning|warnings}, {hints:hint|hints}, {unseen} not '
            'looked at.',
            **fields,
        )
    if counts[Severity.WARNING]:
        return _(
            'Verdict: fit to train, with doubts; {errors:error|errors}, '
            '{warnings:warning|warnings}, {hints:hint|hints}, {unseen} not '
            'looked at.',
            **fields,
        )
    return _(
        'Verdict: fit to train; {errors:error|errors}, '
        '{warnings:warning|warnings}, {hints:hint|hints}, {unseen} not '
        'looked at.',
        **fields,
    )


def as_json(report: Report, code: int) -> str:
    """The same for programs.

    Args:
        report (Report): What was found.
        code (int): The exit code.
    """
    content = {
        'version': 1,
        'exit_code': code,
        'verdict': verdict(report),
        'findings': [one.as_dict() for one in report.findings],
        'not_seen': [one._asdict() for one in report.not_seen],
        'facts': {
            test: [one._asdict() for one in facts]
            for test, facts in report.facts.items()
        },
    }
    return json.dumps(content, indent=2, ensure_ascii=False)


def _facts(report: Report) -> object:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=_('This machine'))
    for __ in range(4):
        table.add_column('')
    table.show_header = False
    for test, facts in report.facts.items():
        name = _(PARTS[test])
        for one in facts:
            cells = (name, one.device, one.label, one.value)
            # Names of devices and files are no markup.
            table.add_row(*(Text(printable(c, _LONGEST)) for c in cells))
            name = ''
        table.add_section()
    return table
