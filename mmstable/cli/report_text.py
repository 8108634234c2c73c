"""The summary of a run, for a terminal and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmstable.finding import Finding
from mmstable.messages import _
from mmstable.messages.printable import printable
from mmstable.report.diagnosis import diagnose
from mmstable.report.diagnosis.config_lines import config_lines
from mmstable.report.diagnosis.wasted import duration
from mmstable.report.figures import Figures, figures_of, headline, notes_of
from mmstable.report.history import History
from mmstable.report.texts import PAGE

_LONGEST = 400
_INDENT = ' ' * 4


def print_summary(history: History) -> None:
    """Print the figures, the findings, and what it comes to."""
    from rich.console import Console

    # Wide enough for the table where there is no terminal.
    console = Console(soft_wrap=True)
    console.print(_table(history))
    for line in lines(history):
        console.print(line, markup=False, highlight=False)


def lines(history: History) -> Iterator[str]:
    """What is wrong, and the headline last."""
    findings = diagnose(history)
    for one in findings:
        yield from _finding_lines(one)
    for note in notes_of(history):
        yield printable(note, _LONGEST)
    yield headline(history, findings)


def summary(history: History) -> dict[str, Any]:
    """The same for programs."""
    findings = diagnose(history)
    return {
        'version': 1,
        'path': str(history.path),
        'headline': headline(history, findings),
        'figures': figures_of(history)._asdict(),
        'findings': [
            {**one.as_dict(), 'config': config_lines(one.change)}
            for one in findings
        ],
        'notes': notes_of(history),
    }


def _finding_lines(one: Finding) -> Iterator[str]:
    severity = one.severity.label
    yield printable(f'{severity}  {one.what}', _LONGEST)
    if one.source:
        yield _INDENT + printable(one.source, _LONGEST)
    if one.why:
        # A story of several lines begins with what happened.
        first = one.why.partition('\\n')[0]
        yield _INDENT + printable(_('evidence: {text}', text=first), _LONGEST)
    if one.fix:
        yield _INDENT + printable(_('fix: {text}', text=one.fix), _LONGEST)
    for line in config_lines(one.change).splitlines():
        yield _INDENT * 2 + printable(line, _LONGEST)


def _table(history: History) -> object:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(printable(history.path)), show_header=False)
    table.add_column('')
    table.add_column('')
    for name, value in _rows(figures_of(history)):
        table.add_row(Text(name), Text(value))
    return table


def _rows(figures: Figures) -> Iterator[tuple[str, str]]:
    yield _('State'), _(PAGE[f'state_{figures.state}'])
    done, most = figures.iterations, figures.most
    yield _('Iterations'), f'{done} / {most}'
    share = (
        f' ({figures.skipped / figures.steps:.1%})' if figures.steps else ''
    )
    yield _('Skipped steps'), f'{figures.skipped}{share}'
    yield _('Rollbacks'), str(figures.rollbacks)
    yield _('Wasted'), str(figures.wasted)
    yield _('Starts'), str(figures.starts)
    for name in ('last_loss', 'best_loss', 'loss_scale', 'seconds'):
        value = getattr(figures, name)
        if value is not None:
            yield _(PAGE[name]), f'{value:.4g}'
    yield _('Time'), duration(figures.duration)
