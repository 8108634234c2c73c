"""``mmstable report``: show what happened to a run."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mmstable.cli.command as cli
from mmstable.messages import N_, _, printable

if TYPE_CHECKING:
    from mmstable.report.history import History
    from mmstable.report.page import Figures

# The number of colours that are easy to tell apart.
_MOST = 6
# Seconds between two lines about the progress.
_PATIENCE_S = 2.0


def report(args: argparse.Namespace) -> int:
    """Write the report, once or again and again, and return the exit code."""
    if len(args.paths) > _MOST:
        raise cli.usage_error(
            'at most {most} work directories can be compared, got {count}.',
            most=_MOST,
            count=len(args.paths),
        )
    if args.follow:
        follow(args.paths, args.output)
        return 0
    histories, path = _write(args.paths, args.output)
    if args.json:
        print(json.dumps([_summary(one) for one in histories], indent=2))
    else:
        for history in histories:
            cli.show(*_text(history))
    cli.tell('written to {path}', path=path)
    return 0


def follow(
    paths: list[str], output: str | None, interval_s: float = 30.0
) -> None:
    """Write the page again and again, until all runs end or Ctrl-C.

    Args:
        paths (list[str]): The work directories.
        output (str, optional): The file, or its folder.
        interval_s (float): Seconds between two pages. Defaults to 30.0.
    """
    from mmstable.report.diagnosis import state_of

    histories, path = _write(paths, output)
    with suppress(KeyboardInterrupt):
        cli.tell(
            'writing {path} every {seconds:g} s until the run ends; Ctrl-C '
            'stops this',
            path=path,
            seconds=interval_s,
        )
        while any(state_of(one.starts[-1]) == 'running' for one in histories):
            time.sleep(interval_s)
            histories, path = _write(paths, output, is_first=False)
    cli.tell('written to {path}', path=path)


def _write(
    paths: list[str], output: str | None, is_first: bool = True
) -> tuple[list[History], Path]:
    from mmstable.report.history import read_history
    from mmstable.report.page import REPORT_NAME, report_folder, write_report

    said = time.monotonic()

    def tell(done: int, count: int) -> None:
        """Say where it is, if that takes long."""
        nonlocal said
        if is_first and time.monotonic() - said >= _PATIENCE_S:
            said = time.monotonic()
            text = N_('reading event file {number} of {count}')
            cli.tell(text, number=done + 1, count=count)

    histories = [read_history(path, tell) for path in paths]
    path = Path(output or report_folder(histories[0].path))
    if output is None or path.is_dir():
        path /= REPORT_NAME
    try:
        write_report(histories, path)
    except OSError as error:
        text, reason = N_("cannot write '{path}': {error}."), error.strerror
        raise cli.usage_error(text, path=path, error=reason) from None
    return histories, path


def _text(history: History) -> Iterator[Any]:
    """The figures, what is wrong, and the headline last."""
    from mmstable.report.diagnosis import config_lines, diagnose
    from mmstable.report.page import figures_of, headline, notes_of

    yield cli.table(_rows(figures_of(history)), title=str(history.path))
    findings = diagnose(history)
    for one in findings:
        # A story of several lines begins with what happened.
        first = replace(one, why=one.why.partition('\\n')[0])
        yield from cli.finding_lines(first, one.what, N_('evidence: {text}'))
        for line in config_lines(one.change).splitlines():
            yield ' ' * 8 + printable(line)
    yield from map(printable, notes_of(history))
    yield headline(history, findings)


def _summary(history: History) -> dict[str, Any]:
    """The same for programs."""
    from mmstable.report.diagnosis import config_lines, diagnose
    from mmstable.report.page import figures_of, headline, notes_of

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


def _rows(figures: Figures) -> Iterator[tuple[str, str]]:
    from mmstable.report.diagnosis import duration
    from mmstable.report.page import PAGE

    yield _('State'), _(PAGE[f'state_{figures.state}'])
    yield _('Iterations'), f'{figures.iterations} / {figures.most}'
    share = figures.skipped / figures.steps if figures.steps else 0.0
    shown = f' ({share:.1%})' if figures.steps else ''
    yield _('Skipped steps'), f'{figures.skipped}{shown}'
    yield _('Rollbacks'), str(figures.rollbacks)
    yield _('Wasted'), str(figures.wasted)
    yield _('Starts'), str(figures.starts)
    for name in ('last_loss', 'best_loss', 'loss_scale', 'seconds'):
        value = getattr(figures, name)
        if value is not None:
            yield _(PAGE[name]), f'{value:.4g}'
    yield _('Time'), duration(figures.duration)
    if figures.goodput is not None:
        yield _('Goodput'), f'{figures.goodput:.0%}'


COMMAND = cli.Command(
    report,
    (
        cli.option(
            'paths',
            'a work directory, the folder of one run, or an event file',
            nargs='+',
            metavar='WORK_DIR',
        ),
        cli.option(
            '-o --output',
            'the HTML file; stability_report.html in the first folder by '
            'default',
            metavar='FILE',
        ),
        (
            cli.flag(
                '--follow',
                'write the file anew every 30 seconds, without a '
                'summary, until the run ends or Ctrl-C',
            ),
            cli.flag('--json', 'print the summary and the findings as JSON'),
        ),
    ),
    'Draw what happened in a work directory, over all its starts, into '
    'one HTML file that opens offline, and print a summary. With several '
    'work directories they are compared.',
    reads_config=False,
)
