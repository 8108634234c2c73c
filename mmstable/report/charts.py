"""The charts of a history: which lines, out of which numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mmstable.report.history import History
from mmstable.report.plain import finite, mapping
from mmstable.report.series import Series, as_lists, decimate, join, ordered

_MOST_LINES = 8
# Columns of the heat map.
_CELLS = 160
# The most marks in a chart.
_MOST_MARKS = 1500

Line = dict[str, Any]


def draw_charts(history: History) -> dict[str, list[Line]]:
    """The lines of all charts, by the name of the chart."""
    return {
        'loss': _losses(history),
        'scale': _scales(history),
        'norm': _norms(history),
        'memory': _plain(history, 'memory'),
        'time': _times(history),
        'lr': _rates(history),
        'validation': _plain(history, 'validation'),
    }


def _line(label: str, series: Series, **style: Any) -> Line:
    return {'label': label, **as_lists(series), **style}


def _plain(history: History, chart: str) -> list[Line]:
    labels = history.labels(chart)[:_MOST_LINES]
    return [_line(label, history.line(chart, label)) for label in labels]


def _losses(history: History) -> list[Line]:
    """As mmengine logs them; as they were sampled where it does not."""
    logged, sampled = history.labels('mean_loss'), history.labels('loss')
    chart = 'mean_loss' if logged else 'loss'
    labels = logged or sampled
    # The whole first, the terms behind it.
    labels = sorted(labels, key=lambda name: (name != 'loss', name))
    lines = [_line(name, history.line(chart, name)) for name in labels]
    if len(lines) == 2 and lines[0]['y'] == lines[1]['y']:
        # A single term is the whole.
        del lines[1]
    return lines[:_MOST_LINES]


def _scales(history: History) -> list[Line]:
    names = [name for one in history.starts for name in one.scales]
    lines = []
    for name in list(dict.fromkeys(names))[:_MOST_LINES]:
        ends = [float(one.header.iteration) for one in history.starts[1:]]
        series = join(
            (one.scales[name], end)
            for one, end in zip(history.starts, [*ends, math.inf])
            if name in one.scales
        )
        if len(series):
            series.add(history.iterations, series.y[-1])
        lines.append(_line(name, series, stepped=True))
    return lines


def _norms(history: History) -> list[Line]:
    lines = _richer(history, 'grad_norm', 'mean_norm')
    for line in lines:
        line['dashed'] = line['label'].endswith('clipped')
    return lines + _limits(history)


def _richer(history: History, first: str, second: str) -> list[Line]:
    """The chart with more points: a short run has few samples."""
    return max(
        (_plain(history, chart) for chart in (first, second)),
        key=lambda lines: max((len(line['x']) for line in lines), default=0),
    )


def _limits(history: History) -> list[Line]:
    """The largest norm that the wrappers let through."""
    last = history.starts[-1].header
    limits = [
        finite(mapping(one.clip_grad).get('max_norm'))
        for one in last.wrappers.values()
    ]
    held = {limit for limit in limits if limit is not None}
    ends = [float(history.starts[0].header.iteration), history.iterations]
    return [
        {'label': 'limit', 'x': ends, 'y': [limit, limit], 'dotted': True}
        for limit in sorted(held)
    ]


def _times(history: History) -> list[Line]:
    phases = history.labels('phases')
    if phases:
        return _plain(history, 'phases')
    lines = _plain(history, 'mean_time')
    return lines or _plain(history, 'time')


def _rates(history: History) -> list[Line]:
    return _richer(history, 'lr', 'mean_lr') + _factors(history)


def _factors(history: History) -> list[Line]:
    series = Series()
    for one in history.incidents('intervention'):
        factor = finite(one.get('lr_factor'))
        if factor is not None:
            series.add(one['iteration'], factor)
    if all(factor == 1.0 for factor in series.y):
        return []
    series.add(history.iterations, series.y[-1])
    return [_line('lr_factor', series, stepped=True, own_axis=True)]


def skip_marks(history: History) -> list[list[float]]:
    """Where steps were bad, and whether they were skipped."""
    found = Series()
    for start in history.starts:
        found.x.extend(start.skipped.x)
        found.y.extend(start.skipped.y)
    x, y = ordered(found)
    if len(x) > _MOST_MARKS:
        index = np.linspace(0, len(x) - 1, _MOST_MARKS).astype(int)
        x, y = x[index], y[index]
    return [x.tolist(), y.tolist()]


def heat_map(history: History) -> dict[str, Any] | None:
    """Norms by module: one row each, the same columns for all."""
    labels = history.labels('modules')[:32]
    if not labels:
        return None
    lines = {name: ordered(history.line('modules', name)) for name in labels}
    columns = np.unique(np.concatenate([x for x, _ in lines.values()]))
    columns = decimate(columns, columns, _CELLS // 4)[0]
    rows = []
    for x, y in lines.values():
        values = dict(zip(x.tolist(), y.tolist()))
        held = [values.get(column) for column in columns.tolist()]
        rows.append([_short(value) for value in held])
    return {'labels': labels, 'x': columns.tolist(), 'rows': rows}


def _short(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(f'{value:.4g}')
