"""Read an event file into what a page shows of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

from mmstable.events.json_lines import parse_record
from mmstable.events.reader import EventReader
from mmstable.events.records import SCHEMA, RunStart
from mmstable.report.incidents import LANES, iteration_of
from mmstable.report.plain import finite, mapping, number, shorten, text
from mmstable.report.series import Series
from mmstable.report.start import LARGEST, Start

# Bytes of a line from which on its record is shortened.
_LONG = 1 << 14
_SHORT = 1 << 12
_MOST_MODULES = 500
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
    header = next(reader)
    start = _begin(path, header)  # type: ignore[arg-type]
    take: dict[str, Callable[[Start, dict[str, Any]], None]] = {
        'heartbeat': _take_heartbeat,
        'scale_change': _take_scale,
        'step_fault': _take_fault,
        'iteration_profile': _take_profile,
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


def _begin(path: Path, header: RunStart) -> Start:
    header = replace(header, time=_time(header.time))
    start = Start(path=path, header=header, is_newer=header.schema > SCHEMA)
    start.last_iteration, start.last_time = header.iteration, header.time
    for name, wrapper in list(header.wrappers.items())[:_MOST_WRAPPERS]:
        if wrapper.loss_scale is not None:
            start.scales[name] = Series()
            start.scales[name].add(header.iteration, wrapper.loss_scale)
    return start


def _take_profile(start: Start, record: dict[str, Any]) -> None:
    _take_phases(start, record)
    # Profiles that found no cause are drawn, but are no incidents.
    if record.get('causes'):
        start.incidents.add(record)


def _take_heartbeat(start: Start, record: dict[str, Any]) -> None:
    x = record['iteration']
    for name, value in mapping(record.get('losses')).items():
        _point(start, 'loss', name, x, value)
    wrappers = mapping(record.get('wrappers'))
    for name, held in wrappers.items():
        prefix = f'{name}/' if len(wrappers) > 1 else ''
        sample = mapping(held)
        _point(start, 'lr', prefix + 'lr', x, sample.get('lr'))
        norm = sample.get('grad_norm')
        _point(start, 'grad_norm', prefix + 'grad_norm', x, norm)
        after = sample.get('clipped_norm')
        _point(start, 'grad_norm', prefix + 'clipped', x, after)
        for module, one in mapping(sample.get('module_norms')).items():
            _point(start, 'modules', prefix + module, x, one)
        scale = finite(sample.get('loss_scale'))
        if scale is not None and name in start.scales:
            start.scales[name].add(x, scale)
    _point(start, 'time', 'iteration', x, record.get('iteration_time'))
    for name in ('host_memory', 'device_memory', 'device_memory_peak'):
        size = finite(record.get(name))
        if size is not None:
            start.point('memory', name, x, size / _MIB)


def _point(start: Start, chart: str, label: str, x: float, value: Any) -> None:
    found = number(value)
    if found is not None:
        start.point(chart, label, x, found)


def _take_scale(start: Start, record: dict[str, Any]) -> None:
    series = start.scales.get(text(record.get('wrapper')))
    scale = finite(record.get('next_loss_scale'))
    if series is not None and scale is not None:
        series.add(record['iteration'], scale)


def _take_fault(start: Start, record: dict[str, Any]) -> None:
    fault = record.get('fault')
    fault = fault if isinstance(fault, str) else 'unknown'
    faults, modules = start.faults, start.modules
    faults[fault if len(faults) < 50 or fault in faults else '…'] += 1
    is_skipped = record.get('outcome') == 'skipped'
    start.skipped.add(record['iteration'], float(is_skipped))
    culprits = record.get('culprits')
    if isinstance(culprits, list) and culprits:
        name = text(mapping(culprits[0]).get('name'))
        key = fault, name.rpartition('.')[0] or name
        if len(modules) < _MOST_MODULES or key in modules:
            modules[key] += 1
    start.incidents.add(record)


def _take_end(start: Start, record: dict[str, Any]) -> None:
    # A traceback ends with what happened.
    trace = record.get('traceback')
    tail = trace[-2000:] if isinstance(trace, str) else ''
    start.end = {**shorten(record), 'traceback': tail}


def _take_other(start: Start, record: dict[str, Any]) -> None:
    if record['event'] not in LANES:
        _take_phases(start, record)
    start.incidents.add(record)


def _take_phases(start: Start, record: dict[str, Any]) -> None:
    """Seconds by phase, of whatever event has them."""
    for name, seconds in list(mapping(record.get('phases')).items())[:12]:
        _point(start, 'phases', name, iteration_of(record), seconds)
