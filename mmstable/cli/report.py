"""``mmstable report``: from event files to a page and a summary."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mmstable.cli.command import say as say_for
from mmstable.cli.report_text import print_summary, summary
from mmstable.errors import UsageError
from mmstable.messages import _
from mmstable.report.diagnosis.endings import state_of
from mmstable.report.history import History, read_history
from mmstable.report.write import REPORT_NAME, report_folder, write_report

# The number of colours that are easy to tell apart.
_MOST = 6
# Seconds between two lines about the progress.
_PATIENCE = 2.0


def report(args: argparse.Namespace) -> int:
    """Write the report, once or again and again, and return the exit code."""
    if len(args.paths) > _MOST:
        raise UsageError(
            _(
                'at most {most} work directories can be compared, got '
                '{count}.',
                most=_MOST,
                count=len(args.paths),
            )
        )
    if args.follow:
        follow(args.paths, args.output)
        return 0
    histories, path = _write(args.paths, args.output, _Progress())
    if args.json:
        print(json.dumps([summary(one) for one in histories], indent=2))
    else:
        for history in histories:
            print_summary(history)
    say_for('report', _('written to {path}', path=path))
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
    histories, path = _write(paths, output, _Progress())
    with suppress(KeyboardInterrupt):
        say_for(
            'report',
            _(
                'writing {path} every {seconds:g} s until the run ends; '
                'Ctrl-C stops this',
                path=path,
                seconds=interval_s,
            ),
        )
        while any(state_of(one.starts[-1]) == 'running' for one in histories):
            time.sleep(interval_s)
            histories, path = _write(paths, output, lambda *__: None)
    say_for('report', _('written to {path}', path=path))


def _write(
    paths: list[str], output: str | None, tell: Callable[[int, int], None]
) -> tuple[list[History], Path]:
    histories = [read_history(path, tell) for path in paths]
    path = _target(output, histories[0])
    try:
        write_report(histories, path)
    except OSError as error:
        raise UsageError(
            _(
                "cannot write '{path}': {error}.",
                path=path,
                error=error.strerror,
            )
        ) from None
    return histories, path


def _target(output: str | None, history: History) -> Path:
    if output is None:
        return report_folder(history.path) / REPORT_NAME
    path = Path(output)
    return path / REPORT_NAME if path.is_dir() else path


class _Progress:
    """Says where it is, if that takes long."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def __call__(self, done: int, count: int) -> None:
        now = time.monotonic()
        if now - self._told < _PATIENCE:
            return
        self._told = now
        say_for(
            'report',
            _(
                'reading event file {number} of {count}',
                number=done + 1,
                count=count,
            ),
        )
