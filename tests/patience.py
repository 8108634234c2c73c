"""More time for processes before they count as hung, on a busy machine.

``MMSTABLE_TEST_PATIENCE=5`` makes the limits of the tests five times longer;
``tests/versions/run_matrix.py`` sets it. What hangs still fails, only later.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any

VARIABLE = 'MMSTABLE_TEST_PATIENCE'
PATIENCE = float(os.environ.get(VARIABLE, '1'))


def be_patient() -> None:
    """Let all waits for processes take that much longer."""
    if PATIENCE != 1:
        _stretch('wait', 0)
        _stretch('communicate', 1)


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
