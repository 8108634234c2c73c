"""The plots of ``make bench``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use('Agg')

import matplotlib.pyplot as plt  # noqa: E402
from results import Row  # noqa: E402

_GOOD, _BAD, _NONE = '#2a9d5c', '#c8403a', '#bbbbbb'


def draw_limits(rows: Sequence[Row], path: Path) -> None:
    """A bar for every figure with a limit, in parts of that limit."""
    shown = [row for row in rows if row.limit]
    if not shown:
        return
    parts = [row.value / (row.limit or 1) for row in shown]
    figure, axes = plt.subplots(figsize=(10, 1 + 0.28 * len(shown)))
    colours = [_GOOD if row.holds else _BAD for row in shown]
    axes.barh(range(len(shown)), parts, color=colours)
    labels = [f'{row.case}, {row.what}' for row in shown]
    axes.set_yticks(range(len(shown)), labels, fontsize=7)
    axes.axvline(1, color='black', linewidth=1)
    axes.set_xlim(0, max(1.5, min(3, max(parts) * 1.05)))
    axes.invert_yaxis()
    axes.set_xlabel('measured / limit')
    _save(figure, path)


def draw_survival(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """A square for every fault and trainer."""
    if not rows:
        return
    names = list(dict.fromkeys(row['contender'] for row in rows))
    faults = list(dict.fromkeys(row['fault'] for row in rows))
    size = (2.5 + 1.1 * len(names), 1 + 0.32 * len(faults))
    figure, axes = plt.subplots(figsize=size)
    for row in rows:
        place = (names.index(row['contender']), faults.index(row['fault']))
        colour = _GOOD if row['survives'] else _BAD
        axes.add_patch(plt.Rectangle(place, 0.94, 0.9, color=colour))
    axes.set_xlim(0, len(names))
    axes.set_ylim(len(faults), 0)
    middle = [i + 0.47 for i in range(max(len(names), len(faults)))]
    axes.set_xticks(middle[: len(names)], names, fontsize=8)
    axes.set_yticks(middle[: len(faults)], faults, fontsize=8)
    axes.set_title('survived (green) or not', fontsize=9)
    axes.set_facecolor(_NONE)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
