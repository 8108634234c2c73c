"""What was found in a data set, as text."""

from __future__ import annotations

from collections.abc import Iterator

from mmstable.finding import Finding
from mmstable.messages import _
from mmstable.messages.printable import printable
from mmstable.preflight.check_data import Summary, where

_MOST_NAMED = 3
_LONGEST = 300
_INDENT = ' ' * 4


def data_table(summary: Summary) -> Iterator[str]:
    """The lines, one block for each kind of problem."""
    findings = summary.findings()
    if not findings:
        yield _('nothing wrong was found')
    rows = [
        (
            one.severity.label,
            one.id,
            _(
                '{count} of {total}',
                count=_count(summary, one),
                total=len(summary.reports),
            ),
            printable(one.what, _LONGEST),
        )
        for one in findings
    ]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row, one in zip(rows, findings):
        yield '  '.join(
            f'{cell:{width}}' for cell, width in zip(row, widths)
        ).rstrip()
        yield _INDENT + _('first: {names}', names=_first(summary, one))
        yield _INDENT + _('why: {text}', text=one.why)
        yield _INDENT + _('fix: {text}', text=one.fix)
    slowest = [
        f'{where(one)} {one.milliseconds:.1f} ms' for one in summary.slowest()
    ]
    largest = [
        f'{where(one)} {one.size / 1e6:.2f} MB' for one in summary.largest()
    ]
    yield _('slowest: {names}', names=slowest[:_MOST_NAMED])
    yield _('largest: {names}', names=largest[:_MOST_NAMED])


def _count(summary: Summary, finding: Finding) -> int:
    if finding.id == 'dropped':
        return len(summary.dropped)
    return len(_offenders(summary, finding))


def _first(summary: Summary, finding: Finding) -> list[str]:
    if finding.id == 'dropped':
        return summary.dropped[:_MOST_NAMED]
    return _offenders(summary, finding)[:_MOST_NAMED]


def _offenders(summary: Summary, finding: Finding) -> list[str]:
    return [
        where(report)
        for report in summary.reports
        if any(problem.id == finding.id for problem in report.problems)
    ]
