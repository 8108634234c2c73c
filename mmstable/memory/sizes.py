"""Bytes, and times, for people and from people."""

from __future__ import annotations

import re

from mmstable.messages import _

_UNITS = ('B', 'KiB', 'MiB', 'GiB', 'TiB')
_FACTORS = {
    '': 1,
    'B': 1,
    'K': 1 << 10,
    'M': 1 << 20,
    'G': 1 << 30,
    'T': 1 << 40,
    'KB': 10**3,
    'MB': 10**6,
    'GB': 10**9,
    'TB': 10**12,
    'KIB': 1 << 10,
    'MIB': 1 << 20,
    'GIB': 1 << 30,
    'TIB': 1 << 40,
}
_SIZE = re.compile(r'\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*')


def readable(size: float) -> str:
    """A number of bytes, as '1.5 GiB'.

    Args:
        size (float): Bytes.
    """
    power = 0
    while abs(size) >= 1024 and power < len(_UNITS) - 1:
        size, power = size / 1024, power + 1
    return f'{size:.1f} {_UNITS[power]}' if power else f'{size:.0f} B'


def parse_size(text: str) -> int:
    """The bytes of a size like '24GiB', '512 MiB' or '80GB'.

    A single letter is a power of 1024, as in '24G'.

    Args:
        text (str): The size.
    """
    found = _SIZE.fullmatch(text)
    unit = None if found is None else _FACTORS.get(found[2].upper())
    size = 0 if found is None or unit is None else int(float(found[1]) * unit)
    if size < 1:
        raise ValueError(
            _(
                "a size is a number above 0 with a unit, as '24GiB', got "
                '{text}',
                text=repr(text),
            )
        )
    return size


def readable_time(seconds: float) -> str:
    """How long, as '47 min' or '3.2 h'."""
    if seconds < 90:
        return f'{seconds:.0f} s'
    if seconds < 90 * 60:
        return f'{seconds / 60:.0f} min'
    if seconds < 48 * 3600:
        return f'{seconds / 3600:.1f} h'
    return f'{seconds / 86400:.1f} d'
