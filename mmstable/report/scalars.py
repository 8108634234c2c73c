"""What mmengine itself has written of a run: ``vis_data/scalars.json``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mmstable.checked_json import parse_json
from mmstable.files import read_only
from mmstable.report.plain import finite, number
from mmstable.report.start import LARGEST, Start

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
            _go_on(start, int(step), content.get('time'))
        for name, value in content.items():
            _take_training(start, name, step, value)
    elif any(name.startswith(_MEMORY) for name in content):
        _take_memory(start, content)
    else:
        for name, value in content.items():
            if (
                name != 'step'
                and not name.startswith(('train/', 'stable/'))
                and name not in ('time', 'data_time')
            ):
                _add(start, 'validation', name, step, value)
    return step


def _go_on(start: Start, iteration: int, seconds: Any) -> None:
    """Note an iteration after the last record, and when it was done.

    The lines have no date, only what an iteration took in the mean.
    """
    spent = (iteration - start.last_iteration) * (finite(seconds) or 0.0)
    start.last_iteration = iteration
    start.last_time += max(0.0, spent)


def _take_training(start: Start, name: str, x: float, value: Any) -> None:
    last = name.rpartition('/')[2]
    if last.startswith('loss') and not name.startswith('stable/'):
        _add(start, 'mean_loss', name, x, value)
    elif last == 'grad_norm':
        _add(start, 'mean_norm', name, x, value)
    elif last == 'grad_norm_clipped':
        _add(start, 'mean_norm', 'clipped', x, value)
    elif name in ('time', 'data_time'):
        _add(start, 'mean_time', name, x, value)
    elif name == 'lr' or name.endswith('.lr'):
        # With the name of a wrapper, if there are several.
        _add(start, 'mean_lr', name.replace('.', '/'), x, value)


def _take_memory(start: Start, content: dict[str, Any]) -> None:
    x = finite(content.get('step'))
    for name, label in _MEMORY_LABELS.items():
        if x is not None:
            _add(start, 'memory', label, x, content.get(_MEMORY + name))


def _add(start: Start, chart: str, label: str, x: float, value: Any) -> None:
    # mmengine writes NaN and Infinity as Python's json does.
    found = number(value)
    if found is not None:
        start.point(chart, label, x, found)
