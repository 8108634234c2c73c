"""Bytes for people."""

from __future__ import annotations

_UNITS = ('B', 'KiB', 'MiB', 'GiB', 'TiB')


def readable(size: float) -> str:
    """A number of bytes, as '1.5 GiB'.

    Args:
        size (float): Bytes.
    """
    power = 0
    while abs(size) >= 1024 and power < len(_UNITS) - 1:
        size, power = size / 1024, power + 1
    return f'{size:.1f} {_UNITS[power]}' if power else f'{size:.0f} B'
