"""More time for processes before they count as hung, on a busy machine.

``MMSTABLE_TEST_PATIENCE=5`` makes the limits of the tests five times longer;
``tests/versions/run_matrix.py`` sets it. What hangs still fails, only later.
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any, Callable

VARIABLE = 'MMSTABLE_TEST_PATIENCE'
PATIENCE = float(os.environ.get(VARIABLE, '1'))


def be_patient() -> None:
    """Let all waits for processes take that much longer."""
    if PATIENCE != 1:
        _stretch('wait', 0)
        _stretch('communicate', 1)


def wait_until(
    condition: Callable[[], Any],
    seconds: float = 60.0,
    process: subprocess.Popen[str] | None = None,
) -> Any:
    """Wait for a condition, and fail without it.

    Args:
        condition (Callable): Gives something true in the end.
        seconds (float): The longest wait on a machine that is not busy.
            Defaults to 60.0.
        process (Popen, optional): It must live until then. Defaults to None.

    Returns:
        Any: What it gave.
    """
    deadline = time.monotonic() + seconds * PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, 'it has never come true'
        assert process is None or process.poll() is None, 'the process ended'
        time.sleep(0.01)
    return found


def _stretch(name: str, position: int) -> None:
    # ``position`` is where the method takes its limit, if not by name.
    method = getattr(subprocess.Popen, name)

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get('timeout') is not None:
            kwargs['timeout'] *= PATIENCE
        values = list(args)
        if len(values) > position and values[position] is not None:
            values[position] *= PATIENCE
        return method(self, *values, **kwargs)

    setattr(subprocess.Popen, name, wait)
