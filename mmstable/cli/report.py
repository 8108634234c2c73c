"""``mmstable report``: from event files to a page and a summary."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from mmstable.cli.command import say as say_for
from mmstable.cli.report_text import print_summary, summary
from mmstable.errors import UsageError
from mmstable.messages import say
from mmstable.report.history import History, read_history
from mmstable.report.serve import serve
from mmstable.report.write import REPORT_NAME, report_folder, write_report

# The number of colours that are easy to tell apart.
_MOST = 6
# Seconds between two lines about the progress.
_PATIENCE = 2.0


def report(args: argparse.Namespace) -> int:
    """Write the report, or show it, and return the exit code."""
    if len(args.paths) > _MOST:
        raise UsageError(
            say('report.too_many', most=_MOST, count=len(args.paths))
        )
    if args.serve is not None:
        # Whatever is wrong with the paths is said before a browser asks.
        _read(args.paths)
        serve(args.paths, args.serve, lambda text: say_for('report', text))
        return 0
    histories = _read(args.paths)
    path = _target(args.output, histories[0])
    try:
        write_report(histories, path)
    except OSError as error:
        raise UsageError(
            say('report.cannot_write', path=path, error=error.strerror)
        ) from None
    if args.json:
        print(json.dumps([summary(one) for one in histories], indent=2))
    else:
        for history in histories:
            print_summary(history)
    say_for('report', say('report.written', path=path))
    return 0


def _read(paths: list[str]) -> list[History]:
    progress = _Progress()
    return [read_history(path, progress) for path in paths]


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
        say_for('report', say('report.reading', number=done + 1, count=count))
