"""The history of a run: all starts of a work directory.

An event file is read in bounded memory into a :class:`Start`, together with
mmengine's own ``vis_data/scalars.json``. Records stay plain dicts here, with
only ``event``, ``iteration`` and ``time`` checked: a field that is broken,
foreign or newer costs that field, not the line, and a line is parsed in a
third of the time that the typed reader takes.
"""

from __future__ import annotations

import json
import math
import os
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable

import numpy as np

from mmstable.checkpoint.manifest import Manifest, manifests_in
from mmstable.errors import UsageError
from mmstable.events.codec import parse_record
from mmstable.events.log import EventFileError, EventReader
from mmstable.events.records import SCHEMA, RunStart
from mmstable.io.files import read_only
from mmstable.io.process import ProcessIdentity
from mmstable.io.schema import (
    finite,
    mapping,
    number_or_none,
    parse_json,
    shorten,
    text_or_empty,
    whole,
)
from mmstable.messages import _, printable

# Buckets of a line that is drawn; each keeps four points.
BUCKETS = 1000


class Series:
    """Values over iterations, as they came."""

    def __init__(self) -> None:
        self.x, self.y = array('d'), array('d')

    def add(self, x: float, y: float) -> None:
        """Append a point."""
        self.x.append(x)
        self.y.append(y)

    def __len__(self) -> int:
        return len(self.x)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Both as numpy arrays."""
        # Copies: an array cannot grow while numpy has a view of it.
        return np.array(self.x), np.array(self.y)


def ordered(series: Series) -> tuple[np.ndarray, np.ndarray]:
    """Points by iteration; of several at one, the last that came."""
    x, y = series.arrays()
    order = np.argsort(x, kind='stable')
    x, y = x[order], y[order]
    last = np.append(x[1:] != x[:-1], True) if len(x) else x.astype(bool)
    return x[last], y[last]


def decimate(
    x: np.ndarray, y: np.ndarray, buckets: int = BUCKETS
) -> tuple[np.ndarray, np.ndarray]:
    """First, last, smallest and largest point of each bucket.

    Args:
        x (ndarray): Where, ascending.
        y (ndarray): What. Values that are not finite count as none.
        buckets (int): How many there are. Defaults to 1000.
    """
    if len(x) <= 4 * buckets:
        return x, y
    edges = np.linspace(0, len(x), buckets + 1).astype(int)
    low = np.where(np.isfinite(y), y, np.inf)
    high = np.where(np.isfinite(y), y, -np.inf)
    kept = [edges[:-1], edges[1:] - 1]
    for start, end in zip(edges[:-1], edges[1:]):
        lowest, highest = np.argmin(low[start:end]), np.argmax(high[start:end])
        kept.append(start + np.array([lowest, highest]))
    index = np.unique(np.concatenate(kept))
    return x[index], y[index]


def as_lists(series: Series) -> dict[str, list[float | None]]:
    """A series for a page: few points, and null where there is no number."""
    x, y = decimate(*ordered(series))
    return {'x': rounded(x.tolist()), 'y': rounded(y.tolist())}


def rounded(values: Iterable[float | None]) -> list[float | None]:
    """Round numbers for a page; None for those that are not finite."""
    return [
        None
        if value is None or not math.isfinite(value)
        else int(value)
        if value == int(value)
        else float(f'{value:.6g}')
        for value in values
    ]


# Events of each kind that are kept: the first ones and the last ones. Those
# between them are only counted.
FIRST, LAST = 300, 300
MOST_KINDS = 40

# The lane that an event is drawn in; others have a lane in common.
LANES = {
    'step_fault': 'faults',
    'poisoned': 'faults',
    'fault_explained': 'faults',
    'replicas_diverged': 'faults',
    'intervention': 'actions',
    'live_change': 'actions',
    'out_of_memory': 'machine',
    'memory_alarm': 'machine',
    'hang': 'machine',
    'checkpoint_failed': 'machine',
    'low_headroom': 'machine',
    'iteration_profile': 'machine',
    'injected_fault': 'injected',
}


class Incidents:
    """The first and the last events of each kind."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[list[dict], deque[dict]]] = {}

    def add(self, record: dict[str, Any]) -> None:
        """Keep an event, perhaps until later ones come."""
        kind = record['event']
        if kind not in self._kept and len(self._kept) >= MOST_KINDS:
            return
        first, last = self._kept.setdefault(kind, ([], deque(maxlen=LAST)))
        if len(first) < FIRST:
            first.append(shorten(record))
        else:
            last.append(record)

    def all(self) -> list[dict[str, Any]]:
        """All that are kept, by time."""
        kept = [one for kind in self._kept for one in self.of(kind)]
        return sorted(kept, key=lambda one: finite(one.get('time')) or 0.0)

    def of(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        """Return all of one kind, with these values, that are kept."""
        first, last = self._kept.get(kind, ([], deque()))
        return [
            one
            for one in [*first, *map(shorten, last)]
            if all(one.get(name) == value for name, value in fields.items())
        ]


def iteration_of(record: dict[str, Any]) -> int:
    """The iteration of an event."""
    return whole(record.get('iteration'))


def text_of(record: Mapping[str, Any], name: str) -> str:
    """Return a text of an event; '' if there is none."""
    return text_or_empty(record.get(name))


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
        series (dict): Numbers over iterations, by chart and label.
        labels (Counter): Number of series by chart.
        counts (Counter): Events by kind.
        faults (Counter): Bad steps by fault.
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
    """

    path: Path
    header: RunStart
    series: dict[tuple[str, str], Series] = field(default_factory=dict)
    labels: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    skipped: Series = field(default_factory=Series)
    scales: dict[str, Series] = field(default_factory=dict)
    incidents: Incidents = field(default_factory=Incidents)
    end: dict[str, Any] | None = None
    last_iteration: int = 0
    last_time: float = 0.0
    bad_lines: int = 0
    is_cut_off: bool = False
    is_newer: bool = False

    def point(self, chart: str, label: str, x: float, value: Any) -> None:
        """Add a value to a chart if it is a number and there is room."""
        # mmengine writes NaN and Infinity as Python's json does.
        y = number_or_none(value)
        if y is None:
            return
        key = chart, label[:_LONGEST_LABEL]
        series = self.series.get(key)
        if series is None:
            if self.labels[chart] >= MOST_SERIES:
                return
            self.labels[chart] += 1
            series = self.series[key] = Series()
        series.add(x, y)

    def config_path(self, wrapper: str) -> str:
        """Return where a config has the settings of a wrapper."""
        several = len(self.header.wrappers) > 1
        return f'optim_wrapper.{wrapper}' if several else 'optim_wrapper'

    @property
    def process(self) -> ProcessIdentity | None:
        """The process that wrote it.

        None if only its number is known, which another process may have now.
        """
        one = self.header
        if one.space is None or one.born is None or not 0 < one.pid < 2**31:
            return None
        return ProcessIdentity(one.host, one.pid, one.space, one.born)

    @property
    def done(self) -> int:
        """Iterations since the start, as far as is known."""
        return max(0, self.last_iteration - self.header.iteration)

    @property
    def steps(self) -> int:
        """By the last record, or else by the iterations that are known."""
        totals = mapping(mapping(self.end).get('wrappers')).values()
        counted = sum(
            whole(mapping(one).get(name))
            for one in totals
            for name in ('applied', 'skipped')
        )
        wrappers = self.header.wrappers.values()
        return counted or sum(
            self.done // max(1, one.accumulative_counts) for one in wrappers
        )


# Bytes of a line from which on its record is shortened.
_LONG = 1 << 14
_SHORT = 1 << 12
_MOST_WRAPPERS = 16
_MIB = 1 << 20
# The latest time that is believed, in seconds since 1970.
_LATEST = 1e11


def read_start(path: Path) -> Start:
    """What an event file says.

    Args:
        path (Path): The event file.

    Raises:
        EventFileError: If it is none.
        OSError: If it cannot be read.
    """
    reader = EventReader(path, _parse)
    header: Any = next(reader)
    header = replace(header, time=_time(header.time))
    start = Start(path=path, header=header, is_newer=header.schema > SCHEMA)
    start.last_iteration, start.last_time = header.iteration, header.time
    for name, wrapper in list(header.wrappers.items())[:_MOST_WRAPPERS]:
        if wrapper.loss_scale is not None:
            start.scales[name] = Series()
            start.scales[name].add(header.iteration, wrapper.loss_scale)
    take: dict[str, Callable[[Start, dict[str, Any]], None]] = {
        'heartbeat': _take_heartbeat,
        'scale_change': _take_scale,
        'step_fault': _take_fault,
        'run_end': _take_end,
    }
    counts = start.counts
    for record in reader:
        content: Any = record
        kind = content['event']
        counts[kind if len(counts) < 200 or kind in counts else '…'] += 1
        iteration = content['iteration']
        start.last_iteration = max(start.last_iteration, iteration)
        start.last_time = max(start.last_time, content['time'])
        take.get(kind, _take_other)(start, content)
    start.bad_lines = reader.skipped
    start.is_cut_off = reader.is_cut_off
    return start


def _parse(line: bytes, schema: int) -> dict[str, Any]:
    is_short = len(line) < _SHORT
    # A short line cannot hold a number that takes long to parse.
    content = json.loads(line) if is_short else parse_record(line)
    if not isinstance(content, dict):
        raise ValueError('must be an object')
    if not isinstance(content.get('event'), str):
        raise ValueError('`event` must be a string')
    iteration = content.get('iteration')
    if type(iteration) is not int or not 0 <= iteration <= LARGEST:
        raise ValueError('`iteration` must be an integer')
    content['time'] = _time(content.get('time'))
    return content if len(line) < _LONG else shorten(content, 2 * _LONG)


def _time(value: Any) -> float:
    """A time that can be drawn; 0.0 for any other."""
    found = finite(value) or 0.0
    return found if 0.0 <= found <= _LATEST else 0.0


def _take_heartbeat(start: Start, record: dict[str, Any]) -> None:
    x = record['iteration']
    for name, value in mapping(record.get('losses')).items():
        start.point('loss', name, x, value)
    wrappers = mapping(record.get('wrappers'))
    for name, held in wrappers.items():
        prefix = f'{name}/' if len(wrappers) > 1 else ''
        sample = mapping(held)
        start.point('lr', prefix + 'lr', x, sample.get('lr'))
        norm = sample.get('grad_norm')
        start.point('grad_norm', prefix + 'grad_norm', x, norm)
        after = sample.get('clipped_norm')
        start.point('grad_norm', prefix + 'clipped', x, after)
        for module, one in mapping(sample.get('module_norms')).items():
            start.point('modules', prefix + module, x, one)
        scale = finite(sample.get('loss_scale'))
        if scale is not None and name in start.scales:
            start.scales[name].add(x, scale)
    start.point('time', 'iteration', x, record.get('iteration_time'))
    for name in ('host_memory', 'device_memory', 'device_memory_peak'):
        size = finite(record.get(name))
        if size is not None:
            start.point('memory', name, x, size / _MIB)


def _take_scale(start: Start, record: dict[str, Any]) -> None:
    series = start.scales.get(text_of(record, 'wrapper'))
    scale = finite(record.get('next_loss_scale'))
    if series is not None and scale is not None:
        series.add(record['iteration'], scale)


def _take_fault(start: Start, record: dict[str, Any]) -> None:
    fault = record.get('fault')
    fault = fault if isinstance(fault, str) else 'unknown'
    faults = start.faults
    faults[fault if len(faults) < 50 or fault in faults else '…'] += 1
    is_skipped = record.get('outcome') == 'skipped'
    start.skipped.add(record['iteration'], float(is_skipped))
    start.incidents.add(record)


def _take_end(start: Start, record: dict[str, Any]) -> None:
    # A traceback ends with what happened.
    trace = record.get('traceback')
    tail = trace[-2000:] if isinstance(trace, str) else ''
    start.end = {**shorten(record), 'traceback': tail}


def _take_other(start: Start, record: dict[str, Any]) -> None:
    # Seconds by phase, of whatever event has them.
    for name, seconds in list(mapping(record.get('phases')).items())[:12]:
        start.point('phases', name, iteration_of(record), seconds)
    # Profiles that found no cause are drawn, but are no incidents.
    if record['event'] != 'iteration_profile' or record.get('causes'):
        start.incidents.add(record)


_LONGEST_LINE = 1 << 18
_LARGEST = 1 << 28
_MEMORY = 'train/stable/memory/'
_MEMORY_LABELS = {
    'host_mib': 'host_tree',
    'workers_mib': 'workers',
    'device_allocated_mib': 'device_memory',
    'device_reserved_mib': 'device_reserved',
}


def read_scalars(start: Start, path: Path, longest: int = _LARGEST) -> None:
    """Add what the log lines of a run say to what its event file says.

    Args:
        start (Start): The run.
        path (Path): The file, one JSON object in a line.
        longest (int): The most bytes to read. Defaults to 256 MiB.
    """
    step, left = float(start.header.iteration), longest
    told = start.last_time
    try:
        with open(path, 'rb', opener=read_only) as file:
            written = os.fstat(file.fileno()).st_mtime
            while left > 0 and (line := file.readline(_LONGEST_LINE)):
                left -= len(line)
                step = _take_line(start, line, step)
    except OSError:
        # Other back-ends do not write it; the event file is enough.
        return
    # Means may be of slow iterations; no line is newer than its file.
    start.last_time = max(told, min(start.last_time, written))


def _take_line(start: Start, line: bytes, step: float) -> float:
    try:
        content = parse_json(line, _LONGEST_LINE)
    except ValueError:
        return step
    if not isinstance(content, dict):
        return step
    if 'lr' in content or 'iter' in content:
        step = finite(content.get('step')) or step
        # If a run was killed, this file often has newer records.
        if start.last_iteration < step <= LARGEST:
            # The lines have no date, only what an iteration took in the mean.
            seconds = finite(content.get('time')) or 0.0
            spent = (int(step) - start.last_iteration) * seconds
            start.last_iteration = int(step)
            start.last_time += max(0.0, spent)
        for name, value in content.items():
            _take_training(start, name, step, value)
    elif any(name.startswith(_MEMORY) for name in content):
        x = finite(content.get('step'))
        for name, label in _MEMORY_LABELS.items() if x is not None else ():
            start.point('memory', label, x, content.get(_MEMORY + name))
    else:
        for name, value in content.items():
            is_own = name.startswith(('train/', 'stable/'))
            if not is_own and name not in ('step', 'time', 'data_time'):
                start.point('validation', name, step, value)
    return step


def _take_training(start: Start, name: str, x: float, value: Any) -> None:
    last = name.rpartition('/')[2]
    if last.startswith('loss') and not name.startswith('stable/'):
        start.point('mean_loss', name, x, value)
    elif last in ('grad_norm', 'grad_norm_clipped'):
        label = name if last == 'grad_norm' else 'clipped'
        start.point('mean_norm', label, x, value)
    elif name in ('time', 'data_time'):
        start.point('mean_time', name, x, value)
    elif name == 'lr' or name.endswith('.lr'):
        # With the name of a wrapper, if there are several.
        start.point('mean_lr', name.replace('.', '/'), x, value)


# A file, the folder that it is in, the run's, or the work directory.
_PLACES = (
    'events*.jsonl',
    'stability/events*.jsonl',
    '*/stability/events*.jsonl',
)
# As in `work_dirs`, which has a folder for each config.
_ONE_DEEPER = '*/*/stability/events*.jsonl'
_MOST_NAMES = 5
MOST_FILES = 1000


def find_event_files(path: Path) -> list[Path]:
    """The event files of a work directory, of a run, or a file itself.

    Args:
        path (Path): Any of these.

    Raises:
        UsageError: If there is none.
    """
    if path.is_file():
        return [path]
    if not path.exists():
        raise UsageError(_("there is no folder or file '{path}'.", path=path))
    for place in _PLACES:
        found = sorted(path.glob(place))
        if found:
            # The folders are called by the time, so the newest are last.
            return found[-MOST_FILES:]
    inside = sorted({one.parents[2] for one in path.glob(_ONE_DEEPER)})
    if inside:
        names = [str(one) for one in inside[:_MOST_NAMES]]
        raise UsageError(
            _(
                "'{path}' is no work directory, but has some in it. Name one "
                'or several: {names}.',
                path=path,
                names=names,
            )
        )
    raise UsageError(
        _(
            "'{path}' has no event file of mmstable "
            '(<run>/stability/events.jsonl). mmstable.EventLogHook writes it '
            'while a run trains; `mmstable train CONFIG` adds that hook by '
            'itself, unless --as-is is given.',
            path=path,
        )
    )


def log_folder(events: Path) -> Path:
    """The folder of the run that an event file belongs to."""
    folder = events.resolve().parent
    return folder.parent if folder.name == 'stability' else folder


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
        return sum(one.steps for one in self.starts)

    @property
    def iterations(self) -> int:
        """The iteration that the last start has come to."""
        return self.starts[-1].last_iteration

    def line(self, chart: str, label: str) -> Series:
        """Return a series over all starts."""
        return self.joined(
            [one.series.get((chart, label)) for one in self.starts]
        )

    def joined(self, parts: list[Series | None]) -> Series:
        """Join a series of each start; what was done again counts once."""
        begins = [float(one.header.iteration) for one in self.starts]
        joined = Series()
        for number, series in enumerate(parts, 1):
            if series is not None:
                x, y = series.arrays()
                # A later start has resumed from before the rest.
                keep = x <= min(begins[number:], default=math.inf)
                joined.x.extend(x[keep])
                joined.y.extend(y[keep])
        return joined

    @property
    def scaled(self) -> list[str]:
        """The wrappers that have a loss scale."""
        names = [name for one in self.starts for name in one.scales]
        return list(dict.fromkeys(names))

    def labels(self, chart: str) -> list[str]:
        """The names of all series of a chart."""
        found = [
            label
            for start in self.starts
            for where, label in start.series
            if where == chart
        ]
        return list(dict.fromkeys(found))

    def has_hook(self, name: str) -> bool:
        """Return whether the newest start is known to have a hook."""
        header = self.starts[-1].header
        return name in f'{header.custom_hooks} {header.changes}'

    def incidents(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the kept events of one kind, of all starts and ranks."""
        held = [*self.starts, *self.other_ranks]
        return [
            one for start in held for one in start.incidents.of(kind, **fields)
        ]


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
    if file.name.startswith('events.rank'):
        # Only what happened to one more rank.
        kept = Incidents()
        for kind in _OF_EACH_RANK:
            for one in start.incidents.of(kind):
                kept.add(one)
        start.incidents = kept
        history.other_ranks.append(start)
        return
    folder = log_folder(file)
    read_scalars(start, folder / 'vis_data' / 'scalars.json')
    history.starts.append(start)


def _checkpoints(history: History) -> list[tuple[Path, Manifest]]:
    folders = {log_folder(one.path).parent for one in history.starts}
    found: list[tuple[Path, Manifest]] = []
    for folder in sorted(folders)[:10]:
        try:
            found += manifests_in(folder).items()
        except OSError:
            continue
    return sorted(found, key=lambda one: one[1].time)[-500:]


def iteration_seconds(history: History) -> float | None:
    """What an iteration takes, by the median of what is known."""
    for chart, label in (('time', 'iteration'), ('mean_time', 'time')):
        parts = [one.series.get((chart, label)) for one in history.starts]
        held = [y for one in parts if one for y in one.y if finite(y)]
        if held:
            return sorted(held)[len(held) // 2]
    return None
