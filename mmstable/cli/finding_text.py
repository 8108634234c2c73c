"""How a finding is told, whatever has found it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from mmstable.cli.commands.check import EXIT_ERRORS, EXIT_WARNINGS
from mmstable.cli.terminal import paint
from mmstable.finding import Finding, Severity
from mmstable.messages import _
from mmstable.messages.printable import printable

_INDENT = ' ' * 4
_LONGEST = 1000
_COLOURS = {
    Severity.ERROR: 'red',
    Severity.WARNING: 'yellow',
    Severity.HINT: 'cyan',
}


def finding_lines(one: Finding) -> Iterator[str]:
    """A block of lines.

    Args:
        one (Finding): The finding.
    """
    where = f' ({one.source})' if one.source else ''
    severity = one.severity.label
    severity = paint(severity, _COLOURS[one.severity], sys.stdout)
    where = printable(f'{one.id}  {one.path}{where}', _LONGEST)
    yield f'{severity}  {where}'
    yield _INDENT + printable(one.what, _LONGEST)
    yield _INDENT + _('why: {text}', text=one.why)
    yield _INDENT + _('fix: {text}', text=one.fix)


def exit_code(findings: Sequence[Finding]) -> int:
    """What the shell is told about findings: the worst of them.

    Args:
        findings (Sequence[Finding]): The findings.
    """
    severities = {one.severity for one in findings}
    if Severity.ERROR in severities:
        return EXIT_ERRORS
    return EXIT_WARNINGS if Severity.WARNING in severities else 0
