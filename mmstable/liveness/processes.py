"""What is another process of this machine doing?"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from mmstable.checkpoint.stop_signal import catches
from mmstable.files import read_only
from mmstable.liveness import sentinel
from mmstable.loops.shielded_workers import ALL_STACKS, MAIN_STACK

# Seconds to wait for all stacks, for that of a main thread, and for py-spy.
_PATIENCE, _LAST_PATIENCE, _SPY_PATIENCE = 1.0, 5.0, 5.0
# Seconds between two looks.
_PAUSE = 0.01
# Bytes of stacks that are worth reading.
_LONGEST = 1 << 17
_ANSWER = re.compile(r'Process (\d+)\n(.*?)End of process \1\n', re.DOTALL)
# States of processes that handle no signal.
_UNABLE = ('stopped', 'traced', 'dead')
_STATES = {
    'R': 'running',
    'S': 'sleeping',
    'D': 'disk',
    'T': 'stopped',
    't': 'traced',
    'Z': 'dead',
    'X': 'dead',
}


def state_of(pid: int) -> str:
    """'running', 'sleeping', 'disk', 'stopped', 'traced' or 'dead'.

    Args:
        pid (int): The process.

    Returns:
        str: The same, or '' if this machine does not tell.
    """
    if platform.system() != 'Linux':
        return ''
    try:
        return _STATES.get(sentinel.state_of(pid, pid), '')
    except OSError:
        return 'dead'


def waits_in(pid: int) -> str:
    """The function of the kernel that a process waits in, '' if unknown."""
    try:
        text = Path(f'/proc/{pid}/wchan').read_text(errors='replace')
    except OSError:
        return ''
    return '' if text in ('', '0') else text


def ask_for_stacks(pids: Sequence[int], file: Path) -> dict[int, str]:
    """The stacks of processes, written by themselves or read by py-spy.

    Args:
        pids (Sequence[int]): The processes.
        file (Path): Where they write their stacks to when they get the
            signals for that, if they do.

    Returns:
        dict[int, str]: The main thread first, or alone; '' if unknown.
    """
    able = [pid for pid in pids if catches(pid, MAIN_STACK)]
    # Others would write when they continue, and nobody would read it.
    able = [pid for pid in able if state_of(pid) not in _UNABLE]
    found: dict[int, str] = {}
    with suppress(OSError), open(file, 'rb', opener=read_only) as answers:
        answers.seek(0, os.SEEK_END)
        found = _ask_for_all(able, answers)
        for pid in able:
            # A disk lets no handler run until it has answered.
            if pid not in found and state_of(pid) not in (*_UNABLE, 'disk'):
                found[pid] = _ask_for_main(pid, answers)
    return {pid: (found.get(pid) or _spy(pid))[:_LONGEST] for pid in pids}


def _ask_for_all(pids: Sequence[int], answers: IO[bytes]) -> dict[int, str]:
    """Ask the threads that listen; they answer if they get Python's lock."""
    for pid in pids:
        os.kill(pid, ALL_STACKS)
    text, deadline = '', time.monotonic() + _PATIENCE
    found: dict[int, str] = {}
    while not found.keys() >= set(pids) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
        text += answers.read().decode(errors='replace')
        found = {int(pid): stacks for pid, stacks in _ANSWER.findall(text)}
    return found


def _ask_for_main(pid: int, answers: IO[bytes]) -> str:
    """Interrupt the main thread, which may have Python's lock for long."""
    sentinel.signal_thread(pid, pid, MAIN_STACK)
    text, deadline = '', time.monotonic() + _LAST_PATIENCE
    while time.monotonic() < deadline:
        time.sleep(_PAUSE)
        text += answers.read().decode(errors='replace')
        # A late answer of another process is not this handler's output.
        if _ANSWER.sub('', text) and not _is_handling(pid, MAIN_STACK):
            text += answers.read().decode(errors='replace')
            break
    return _ANSWER.sub('', text)


def _is_handling(pid: int, number: int) -> bool:
    """Whether the handler of a signal runs, which blocks that meanwhile."""
    text = Path(f'/proc/{pid}/status').read_text(errors='replace')
    mask = re.search(r'^SigBlk:\s*([0-9a-f]+)$', text, re.M)
    return mask is not None and bool(int(mask[1], 16) >> number - 1 & 1)


def _spy(pid: int) -> str:
    program = shutil.which('py-spy')
    if program is None:
        return ''
    command = [program, 'dump', '--nonblocking', '--pid', str(pid)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SPY_PATIENCE,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ''
    return done.stdout if done.returncode == 0 else ''
