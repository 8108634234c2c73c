"""The progress of a training, as the last line of a terminal."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from mmstable.messages import _, readable_time

_SECONDS_BETWEEN = 0.5
_CLEAR = '\r\x1b[K'


class ProgressLine(Hook):
    """Draws one line at the end of a terminal.

    It draws between two iterations, without a thread: a dataloader worker
    that is forked while another thread holds a lock would wait for ever.
    """

    priority = 'LOWEST'

    def __init__(self) -> None:
        self._console = Console(file=sys.stdout, soft_wrap=True)
        self._drawn = self._first = 0.0
        self._iteration = 0
        self._is_shown = False

    def before_train(self, runner: Runner) -> None:
        """Begin to measure, and make room for log lines."""
        self._first, self._iteration = time.monotonic(), runner.iter
        for handler in runner.logger.handlers:
            stream = getattr(handler, 'stream', None)
            if stream in (sys.stdout, sys.stderr):
                handler.addFilter(self._make_room)

    def after_train_iter(self, runner: Runner, *args: Any, **kw: Any) -> None:
        """Draw it, twice a second at most."""
        now = time.monotonic()
        if now - self._drawn < _SECONDS_BETWEEN:
            return
        self._drawn = now
        done, most = runner.iter + 1, runner.max_iters
        seconds = (now - self._first) / max(1, done - self._iteration)
        text = _(
            '{done}/{most}  {seconds:.2f} s/iteration  {left} left',
            done=done,
            most=most,
            seconds=seconds,
            left=readable_time(seconds * (most - done)),
        )
        width = max(4, min(30, self._console.width - 50))
        bar = Progress(BarColumn(width), TextColumn('{task.description}'))
        bar.add_task(text, total=most, completed=done)
        with self._console.capture() as drawn:
            self._console.print(bar.get_renderable())
        self._write(drawn.get().splitlines()[0])
        self._is_shown = True

    def after_train(self, runner: Runner) -> None:
        """Remove it."""
        self._make_room(None)

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """Remove it; mmstable's loops call this."""
        self._make_room(None)

    def before_val(self, runner: Runner) -> None:
        """Remove it while a validation runs."""
        self._make_room(None)

    def _make_room(self, record: logging.LogRecord | None) -> bool:
        """Remove the line before a log line is printed."""
        if self._is_shown:
            self._is_shown = False
            self._write('')
        return True

    def _write(self, text: str) -> None:
        sys.stdout.write(_CLEAR + text)
        sys.stdout.flush()
