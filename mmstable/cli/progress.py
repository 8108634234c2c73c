"""How far is it?  A bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

from mmstable.messages import say

# Seconds between two lines.
_INTERVAL = 10.0


def show_progress(items: Iterator[Any], total: int) -> Iterator[Any]:
    """Give the same items, and show how many there were.

    Args:
        items (Iterator): The items.
        total (int): How many there will be.
    """
    if sys.stderr.isatty():
        try:
            return _bar(items, total)
        except ImportError:
            # mmengine brings rich along, but may cease to.
            pass
    return _lines(items, total)


def _bar(items: Iterator[Any], total: int) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import track

    return iter(
        track(
            items,
            description='samples',
            total=total,
            console=Console(stderr=True),
        )
    )


def _lines(items: Iterator[Any], total: int) -> Iterator[Any]:
    start = said = time.monotonic()
    for done, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - said >= _INTERVAL and done < total:
            said = now
            left = (now - start) / done * (total - done)
            line = say(
                'data_table.progress',
                done=done,
                total=total,
                left=_duration(left),
            )
            print(line, file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f'{hours}:{minutes:02}:{rest:02}'
