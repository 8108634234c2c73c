"""How far is it?  A bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mmstable.cli.terminal import is_quiet, shows_progress
from mmstable.messages import _

# Seconds between two lines.
_INTERVAL = 10.0
# Seconds without a sign of progress that are no problem.
_PATIENCE = 2.0


def show_progress(items: Iterator[Any], total: int) -> Iterator[Any]:
    """Give the same items, and show how many there were.

    Args:
        items (Iterator): The items.
        total (int): How many there will be.
    """
    if is_quiet():
        return items
    if shows_progress(sys.stderr):
        try:
            return _bar(items, total)
        except ImportError:
            # mmengine brings rich along, but may cease to.
            pass
    return _lines(items, total)


@contextmanager
def working(text: str, is_said: bool = False) -> Iterator[None]:
    """Say what is being done, if it takes longer than two seconds.

    A terminal shows the seconds as they go by, and nothing in the end.

    Args:
        text (str): What is being done.
        is_said (bool): Whether a line has said so before, so that only a
            terminal gets a sign of life. Defaults to False.
    """
    done = threading.Event()
    thread = threading.Thread(
        target=_tell_when_late, args=(text, done), daemon=True
    )
    if shows_progress(sys.stderr) if is_said else not is_quiet():
        thread.start()
    try:
        yield
    finally:
        done.set()
        if thread.is_alive():
            thread.join()


def _tell_when_late(text: str, done: threading.Event) -> None:
    start = time.monotonic()
    if done.wait(_PATIENCE):
        return
    if not shows_progress(sys.stderr):
        print(f'{text} ...', file=sys.stderr, flush=True)
        return
    while not done.wait(0.5):
        past = _duration(time.monotonic() - start)
        print(f'\r\x1b[K{text} {past}', end='', file=sys.stderr, flush=True)
    print('\r\x1b[K', end='', file=sys.stderr, flush=True)


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
            line = _(
                '{done} of {total} samples, about {left} left',
                done=done,
                total=total,
                left=_duration(left),
            )
            print(line, file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f'{hours}:{minutes:02}:{rest:02}'
