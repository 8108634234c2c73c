"""Numbers over iterations, and few of them that show the same line."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

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


def join(parts: Iterable[tuple[Series, float]]) -> Series:
    """One line over several starts of a run.

    Args:
        parts (Iterable): The series of each run, and the iteration that the
            next run went on from: what lies behind that was given up.
    """
    joined = Series()
    for series, end in parts:
        x, y = series.arrays()
        keep = x <= end
        joined.x.extend(x[keep])
        joined.y.extend(y[keep])
    return joined


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
        kept.append(
            np.array(
                [
                    start + int(np.argmin(low[start:end])),
                    start + int(np.argmax(high[start:end])),
                ]
            )
        )
    index = np.unique(np.concatenate(kept))
    return x[index], y[index]


def as_lists(series: Series) -> dict[str, list[float | None]]:
    """A series for a page: few points, and null where there is no number."""
    x, y = decimate(*ordered(series))
    return {
        'x': [_short(value) for value in x.tolist()],
        'y': [
            _short(value) if np.isfinite(value) else None
            for value in y.tolist()
        ],
    }


def _short(value: float) -> float:
    return int(value) if value == int(value) else float(f'{value:.6g}')
