"""What a benchmark says: a table for people, JSON for programs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mmengine
import torch

DEFAULT_FOLDER = Path(__file__).resolve().parent / 'results'


@dataclass(frozen=True)
class Row:
    """One measured figure, and the limit that it should keep to.

    Args:
        case (str): What it was measured on.
        what (str): What was measured.
        value (float): The figure.
        limit (float, optional): The most it may be. Defaults to None.
        best (float, optional): The same figure from the shortest times
            instead of the medians. Defaults to None.
        noise (float, optional): What the same measurement gives for two
            equal things, where 1 is right. Defaults to None.
        note (str): The times behind it. Defaults to ''.
    """

    case: str
    what: str
    value: float
    limit: float | None = None
    best: float | None = None
    noise: float | None = None
    note: str = ''

    @property
    def holds(self) -> bool | None:
        """Whether the figure keeps to its limit; None without one."""
        return None if self.limit is None else self.value <= self.limit


def format_table(rows: Sequence[Row]) -> str:
    """The rows as aligned text."""
    lines: list[tuple[str, ...]] = [
        ('case', 'what', 'value', 'limit', 'holds', 'best', 'A/A', 'times')
    ]
    lines += [_cells(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    # Text to the left, numbers to the right.
    sides = '<<>><>><'
    return '\n'.join(
        '  '.join(
            f'{cell:{side}{width}}'
            for cell, side, width in zip(line, sides, widths)
        ).rstrip()
        for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    holds = {None: '', True: 'yes', False: 'NO'}[row.holds]
    return (
        row.case,
        row.what,
        _number(row.value),
        _number(row.limit),
        holds,
        _number(row.best),
        _number(row.noise),
        row.note,
    )


def _number(value: float | None) -> str:
    if value is None:
        return ''
    return str(value) if isinstance(value, int) else f'{value:.3f}'


def publish(path: Path, rows: Sequence[Row], races: dict[str, Any]) -> None:
    """Print the machine and the rows, and write both with the times."""
    for fact, value in machine_facts().items():
        print(f'{fact}: {value}')
    print(f'\n{format_table(rows)}')
    write_json(path, rows, races)
    print(f'\nwritten to {path}')


def write_json(path: Path, rows: Sequence[Row], races: dict[str, Any]) -> None:
    """Write the rows, the times behind them and the machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        'machine': machine_facts(),
        'rows': [{**asdict(row), 'holds': row.holds} for row in rows],
        'races': races,
    }
    path.write_text(json.dumps(content, indent=2) + '\n', encoding='utf-8')


def machine_facts() -> dict[str, Any]:
    """Where the figures come from."""
    return {
        'cpu': _cpu_name(),
        'cores': os.cpu_count(),
        'threads': torch.get_num_threads(),
        'load_average': _load_average(),
        'python': platform.python_version(),
        'torch': torch.__version__,
        'mmengine': mmengine.__version__,
    }


def _load_average() -> float | None:
    # Windows has none.
    return os.getloadavg()[0] if hasattr(os, 'getloadavg') else None


def _cpu_name() -> str:
    info = Path('/proc/cpuinfo')
    if info.exists():
        for line in info.read_text(encoding='utf-8').splitlines():
            if line.startswith('model name'):
                return line.split(':', 1)[1].strip()
    return platform.processor() or platform.machine()
