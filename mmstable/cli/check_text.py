"""Findings for people, for programs, and for GitHub."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from mmstable.cli.finding_text import finding_lines
from mmstable.finding import Finding, Severity
from mmstable.messages import _
from mmstable.messages.printable import printable
from mmstable.preflight.rule import RULES

_LONGEST = 1000
_MOST_AT_START = 5
_LEVELS = {
    Severity.ERROR: 'error',
    Severity.WARNING: 'warning',
    Severity.HINT: 'notice',
}


def as_text(
    path: str, findings: Sequence[Finding], ignored: Sequence[str] = ()
) -> Iterator[str]:
    """A block for each finding, and the sum of them."""
    for one in findings:
        yield from finding_lines(one)
    if ignored:
        yield _('ignored by `stability_checks`: {names}', names=list(ignored))
    if not findings:
        yield _(
            '{path}: {rules:rule|rules}, nothing found',
            path=path,
            rules=len(RULES),
        )
        return
    counts = Counter(one.severity for one in findings)
    yield _(
        '{path}: {errors:error|errors}, {warnings:warning|warnings}, '
        '{hints:hint|hints} by {rules:rule|rules}',
        path=path,
        errors=counts[Severity.ERROR],
        warnings=counts[Severity.WARNING],
        hints=counts[Severity.HINT],
        rules=len(RULES),
    )


def as_short_text(findings: Sequence[Finding]) -> Iterator[str]:
    """A line for each of the worst."""
    for one in findings[:_MOST_AT_START]:
        yield _(
            '{severity}: {path}: {what} ({name})',
            severity=one.severity.label,
            path=one.path,
            what=one.what,
            name=one.id,
        )
    if len(findings) > _MOST_AT_START:
        yield _('and {count} more', count=len(findings) - _MOST_AT_START)


def as_json(
    path: str, findings: Sequence[Finding], ignored: Sequence[str] = ()
) -> str:
    """One object with all findings."""
    content = {
        'config': path,
        'ignored': list(ignored),
        'findings': [one.as_dict() for one in findings],
    }
    return json.dumps(content, indent=1)


def as_github(path: str, findings: Sequence[Finding]) -> Iterator[str]:
    """A workflow command for each finding."""
    for one in findings:
        file, __, line = one.source.rpartition(':')
        where = f'file={_escape(file or path)},line={line or 1}'
        text = f'{one.path}: {one.what} {one.why} {one.fix}'
        yield (
            f'::{_LEVELS[one.severity]} {where},title={one.id}::'
            f'{_escape(printable(text, _LONGEST), ends=False)}'
        )


def _escape(text: str, ends: bool = True) -> str:
    """What has a meaning in a workflow command, in values or in text."""
    text = text.replace('%', '%25').replace('\r', '%0D').replace('\n', '%0A')
    return text.replace(':', '%3A').replace(',', '%2C') if ends else text
