"""All starts of a work directory, as one story."""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

from mmstable.checkpoint.manifest import Manifest, manifests_in
from mmstable.events.reader import EventFileError
from mmstable.messages.printable import printable
from mmstable.report.find_runs import (
    find_event_files,
    is_of_other_rank,
    log_folder,
)
from mmstable.report.plain import finite, mapping, whole
from mmstable.report.process import process_of
from mmstable.report.read_start import read_start
from mmstable.report.scalars import read_scalars
from mmstable.report.series import Series, join
from mmstable.report.start import Start

# What a rank tells of itself only; bad steps are the same on all of them.
_OF_EACH_RANK = ('fault_explained', 'out_of_memory', 'hang', 'memory_alarm')


@dataclass
class History:
    """What happened in a work directory.

    Args:
        path (Path): What the user named.
        starts (list[Start]): Of the newest training, in the order of time.
        earlier (list[Start]): Of trainings in the same folder before that,
            which it did not go on from.
        other_ranks (list[Start]): What other ranks told.
        checkpoints (list[tuple[Path, Manifest]]): Those that exist.
        problems (list[str]): Files that could not be read, and why.
    """

    path: Path
    starts: list[Start]
    earlier: list[Start] = field(default_factory=list)
    other_ranks: list[Start] = field(default_factory=list)
    checkpoints: list[tuple[Path, Manifest]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def faults(self) -> Counter[str]:
        """Bad steps by fault."""
        return sum((start.faults for start in self.starts), Counter())

    @property
    def skipped(self) -> int:
        """Steps that were skipped."""
        return sum(int(sum(one.skipped.y)) for one in self.starts)

    @property
    def steps(self) -> int:
        """Steps that were made or skipped, as far as is known."""
        return sum(map(_steps_of, self.starts))

    @property
    def iterations(self) -> int:
        """The iteration that the last start has come to."""
        return self.starts[-1].last_iteration

    def line(self, chart: str, label: str) -> Series:
        """A series over all starts; what was done again counts once."""
        ends = [float(one.header.iteration) for one in self.starts[1:]]
        ends = [min(ends[i:]) for i in range(len(ends))]
        parts = [one.series.get((chart, label)) for one in self.starts]
        return join(
            (series, end)
            for series, end in zip(parts, [*ends, math.inf])
            if series is not None
        )

    def labels(self, chart: str) -> list[str]:
        """The names of all series of a chart."""
        found = [
            label
            for start in self.starts
            for where, label in start.series
            if where == chart
        ]
        return list(dict.fromkeys(found))

    def incidents(self, kind: str) -> list[dict[str, Any]]:
        """The kept events of one kind, of all starts and ranks."""
        held = [*self.starts, *self.other_ranks]
        return [one for start in held for one in start.incidents.of(kind)]


def read_history(
    path: str | os.PathLike[str],
    tell: Callable[[int, int], None] = lambda done, count: None,
) -> History:
    """Read all event files of a work directory.

    Args:
        path (str or PathLike): The folder, or an event file.
        tell (Callable): Called with the number of files read, and of all.
            Defaults to doing nothing.

    Raises:
        UsageError: If there is no event file.
        EventFileError: If none of them can be read.
    """
    history = History(Path(path), [])
    files = find_event_files(history.path)
    for done, file in enumerate(files):
        tell(done, len(files))
        _read_file(history, file)
    if not history.starts:
        raise EventFileError('\n'.join(history.problems[:3]))
    history.starts.sort(key=lambda one: one.header.time)
    _part_trainings(history)
    history.checkpoints = _checkpoints(history)
    return history


def _part_trainings(history: History) -> None:
    """Set what another training has left in the folder apart."""
    fresh = [
        index
        for index, one in enumerate(history.starts)
        if one.header.iteration == 0 and one.header.restarts == 0
    ]
    first = fresh[-1] if fresh else 0
    history.earlier = history.starts[:first]
    history.starts = history.starts[first:]
    begin = history.starts[0].header.time
    # Clocks of machines differ by a bit.
    history.other_ranks = [
        one for one in history.other_ranks if one.header.time > begin - 60
    ]


def _read_file(history: History, file: Path) -> None:
    try:
        start = read_start(file)
    except (EventFileError, OSError) as error:
        history.problems.append(printable(error))
        return
    if is_of_other_rank(file):
        history.other_ranks.append(start)
        start.incidents = _only_own(start)
        return
    folder = log_folder(file)
    start.process = process_of(start.header, folder.parent)
    read_scalars(start, folder / 'vis_data' / 'scalars.json')
    history.starts.append(start)


def _only_own(start: Start) -> Any:
    kept = type(start.incidents)()
    for kind in _OF_EACH_RANK:
        for one in start.incidents.of(kind):
            kept.add(one)
    return kept


def _checkpoints(history: History) -> list[tuple[Path, Manifest]]:
    folders = {log_folder(one.path).parent for one in history.starts}
    found = []
    for folder in sorted(folders)[:10]:
        try:
            found += [
                (path, one) for path, one in manifests_in(folder).items()
            ]
        except OSError:
            continue
    return sorted(found, key=lambda one: one[1].time)[-500:]


def _steps_of(start: Start) -> int:
    """By its last record, or else by the iterations that are known."""
    totals = mapping(mapping(start.end).get('wrappers')).values()
    counted = sum(
        whole(mapping(one).get('applied')) + whole(mapping(one).get('skipped'))
        for one in totals
    )
    if counted:
        return counted
    wrappers = start.header.wrappers.values()
    return sum(
        start.done // max(1, one.accumulative_counts) for one in wrappers
    )


def iteration_seconds(history: History) -> float | None:
    """What an iteration takes, by the median of what is known."""
    for chart, label in (('time', 'iteration'), ('mean_time', 'time')):
        parts = [one.series.get((chart, label)) for one in history.starts]
        held = [y for one in parts if one for y in one.y if finite(y)]
        if held:
            return sorted(held)[len(held) // 2]
    return None
