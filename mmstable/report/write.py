"""Write the page of a run where it belongs, also when the run has died."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from mmstable.checkpoint.atomic_file import replace_text
from mmstable.errors import MMStableError
from mmstable.report.diagnosis import diagnose
from mmstable.report.figures import headline
from mmstable.report.find_runs import find_event_files, log_folder
from mmstable.report.history import History, read_history
from mmstable.report.page import write_page

REPORT_NAME = 'stability_report.html'
# Bytes of all event files and log lines of a work directory, and their
# number, that take less than a second on any machine.
_LARGEST = 4 << 20
_MOST_FILES = 40


def report_folder(path: Path) -> Path:
    """Where the page of a folder, or of an event file, goes."""
    return path if path.is_dir() else log_folder(path)


def write_report(histories: Sequence[History], path: Path) -> None:
    """Write the page of one or several work directories.

    Args:
        histories (Sequence[History]): The work directories.
        path (Path): The file, which is replaced as a whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, write_page(histories), encoding='utf-8')


def write_if_quick(
    work_dir: str | os.PathLike[str], seconds: float = 2.0
) -> tuple[Path, str] | None:
    """Write the page of a work directory, unless that would take long.

    Args:
        work_dir (str or PathLike): The work directory.
        seconds (float): The most time that reading may take. Defaults to
            2.0.

    Returns:
        tuple, optional: The file, and the diagnosis in one sentence; None if
        there is nothing to show, or too much for so little time, or no room
        on the disk.
    """
    folder, start = Path(work_dir), time.monotonic()
    try:
        if not _is_small(find_event_files(folder)):
            return None
        history = read_history(folder)
        if time.monotonic() - start > seconds:
            return None
        write_report([history], folder / REPORT_NAME)
    except (MMStableError, OSError):
        return None
    return folder / REPORT_NAME, headline(history, diagnose(history))


def _is_small(files: Sequence[Path]) -> bool:
    if len(files) > _MOST_FILES:
        return False
    logs = [log_folder(one) / 'vis_data' / 'scalars.json' for one in files]
    sizes = [one.stat().st_size for one in [*files, *logs] if one.is_file()]
    return sum(sizes) <= _LARGEST
