"""What a run reports to the supervisor or the scheduler that started it.

Every run writes a heartbeat file about once a second, by
:class:`HangWatchdogHook`: the seconds in which the next heartbeat is due
('inf' for any time) and the phase of the run. While the run hangs, it is not
written, so a scheduler can judge a run by the age of the file. It is
``.mmstable-heartbeat-rankN`` in the work dir, or what the environment variable
``MMSTABLE_HEARTBEAT_FILE`` names.

A supervisor gets another such file for each process, and the failure that
ended the run.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mmstable.io.files import append, read_bounded
from mmstable.io.schema import boolean, integer, parse_json, record, text

HEARTBEAT_FILE = 'MMSTABLE_HEARTBEAT_FILE'
# Names the file of this process for mmstable's own supervisor.
SUPERVISOR = 'MMSTABLE_SUPERVISOR_FILE'
# Set by torchrun.
_TORCHRUN = 'TORCHELASTIC_MAX_RESTARTS'
_MAX_BYTES = 1 << 16
_FAILURE = '.failure'
_check_failure = record(
    rank=integer(0),
    node=text(255),
    iteration=integer(-1),
    error=text(1000),
    decided=boolean,
    saver=integer(-1),
    code=integer(0, 255),
)
_work_file: Path | None = None


def is_supervised() -> bool:
    """Return whether a supervisor is going to restart this run."""
    restarts = os.environ.get(_TORCHRUN, '')
    return bool(os.environ.get(SUPERVISOR)) or (
        restarts.isdigit() and int(restarts) > 0
    )


def begin_heartbeat(work_dir: str, rank: int) -> None:
    """Choose the heartbeat file of a run, and write it.

    An old file must not count as one of a run that hangs.

    Args:
        work_dir (str): The folder of the run.
        rank (int): The rank of this process.
    """
    global _work_file  # noqa: PLW0603
    named = os.environ.get(HEARTBEAT_FILE)
    path = Path(named or f'{work_dir}/.mmstable-heartbeat-rank{rank}')
    if path != _work_file:
        _work_file = path
        write_heartbeat(float('inf'), 'start')


def write_heartbeat(limit: float, phase: str) -> None:
    """Write the heartbeat files.

    Args:
        limit (float): Seconds that the phase may take. A process that writes
            no heartbeat for so long hangs in C.
        phase (str): The phase of the run.
    """
    supervisor = os.environ.get(SUPERVISOR)
    for path in (_work_file, supervisor and Path(supervisor)):
        if path:
            _write(path, f'{limit} {phase}')


def end_heartbeat() -> None:
    """Remove the file: there is nothing to be judged by it any more."""
    global _work_file  # noqa: PLW0603
    if _work_file is not None:
        with suppress(OSError):
            _work_file.unlink()
    _work_file = None


def read_heartbeat(path: Path) -> tuple[int, float, str] | None:
    """Read a heartbeat: time of the file in ns, limit and phase."""
    try:
        written = path.stat().st_mtime_ns
        limit, phase = read_bounded(path, _MAX_BYTES).decode().split(None, 1)
        return written, float(limit), phase
    except (OSError, ValueError):
        # It has not begun, or is about to write.
        return None


def write_failure(failure: Any) -> None:
    """Give the supervisor the failure that ended the run.

    Args:
        failure (PeerFailure): The failure.
    """
    path = os.environ.get(SUPERVISOR)
    if path:
        _write(Path(path).with_suffix(_FAILURE), json.dumps(asdict(failure)))


def read_failure(heartbeat: Path) -> dict[str, Any] | None:
    """Read what :func:`write_failure` wrote; None if nothing."""
    path = heartbeat.with_suffix(_FAILURE)
    try:
        content = read_bounded(path, _MAX_BYTES)
        return _check_failure(parse_json(content, _MAX_BYTES))
    except (OSError, ValueError):
        return None


def _write(path: Path, content: str) -> None:
    # A full disk must not end the training.
    with (
        suppress(OSError),
        open(path, 'w', encoding='utf-8', opener=append) as file,
    ):
        file.write(content)
