"""Read past data again, where nothing better is possible."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from mmengine.logging import print_log

from mmstable.messages import _

_SECONDS_BETWEEN_LINES = 5.0


def reread(batches: Iterator[Any], count: int) -> None:
    """Draw batches and drop them, with a line of progress now and then.

    Args:
        batches (Iterator): Where to draw from. It may end early.
        count (int): How many to draw.
    """
    start = last = time.monotonic()
    for done in range(count):
        now = time.monotonic()
        if now - last >= _SECONDS_BETWEEN_LINES:
            last = now
            left = (now - start) * (count - done) / done if done else 0.0
            line = _(
                'Read {done} of {count} past batches, {seconds:.0f} s left.',
                done=done,
                count=count,
                seconds=left,
            )
            print_log(line, logger='current')
        try:
            next(batches)
        except StopIteration:
            return
    seconds = time.monotonic() - start
    line = _(
        'Read {count} past batches again in {seconds:.1f} s.',
        count=count,
        seconds=seconds,
    )
    print_log(line, logger='current')
