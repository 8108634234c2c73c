"""One start of a run: what its event file says, in bounded memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmstable.events.records import RunStart
from mmstable.process_identity import ProcessIdentity
from mmstable.report.incidents import Incidents
from mmstable.report.series import Series

# The most series of a chart; a model may have dozens of losses.
MOST_SERIES = 64
_LONGEST_LABEL = 120
# The largest iteration that JavaScript can hold exactly.
LARGEST = 2**53


@dataclass
class Start:
    """A run from its start to its end, of which a work dir may have many.

    Args:
        path (Path): The event file.
        header (RunStart): Its first line.
        process (ProcessIdentity, optional): Who wrote it, if that process
            can be told from others that have its number.
        series (dict): Numbers over iterations, by chart and label.
        labels (Counter): Number of series by chart.
        counts (Counter): Events by kind.
        faults (Counter): Bad steps by fault.
        modules (Counter): Bad steps by fault and the module of their first
            culprit.
        skipped (Series): The iterations of bad steps; 1.0 for those that were
            skipped, else 0.0.
        scales (dict): Changes of the loss scale by wrapper.
        incidents (Incidents): What can be clicked on.
        end (dict, optional): The last record, if the run has left its loop.
        last_iteration (int): The last iteration that anything tells of.
        last_time (float): The time of the last record, or by the log lines
            that came after it.
        bad_lines (int): Lines that are no records.
        is_cut_off (bool): Whether the last line is torn.
        is_newer (bool): Whether a newer mmstable wrote the file.
        notes (list): What could not be read, in words.
    """

    path: Path
    header: RunStart
    process: ProcessIdentity | None = None
    series: dict[tuple[str, str], Series] = field(default_factory=dict)
    labels: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    modules: Counter[tuple[str, str]] = field(default_factory=Counter)
    skipped: Series = field(default_factory=Series)
    scales: dict[str, Series] = field(default_factory=dict)
    incidents: Incidents = field(default_factory=Incidents)
    end: dict[str, Any] | None = None
    last_iteration: int = 0
    last_time: float = 0.0
    bad_lines: int = 0
    is_cut_off: bool = False
    is_newer: bool = False
    notes: list[str] = field(default_factory=list)

    def point(self, chart: str, label: str, x: float, y: float) -> None:
        """Add a number to a chart, if there is room for its name."""
        key = chart, label[:_LONGEST_LABEL]
        series = self.series.get(key)
        if series is None:
            if self.labels[chart] >= MOST_SERIES:
                return
            self.labels[chart] += 1
            series = self.series[key] = Series()
        # Called for every number of a file.
        series.x.append(x)
        series.y.append(y)

    @property
    def done(self) -> int:
        """Iterations since the start, as far as is known."""
        return max(0, self.last_iteration - self.header.iteration)
