"""What is another process of this machine doing?"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from mmstable.checkpoint.stop_signal import catches
from mmstable.files import read_only
from mmstable.loops.shielded_workers import STACKS

# Seconds to wait for stacks, and for py-spy.
_PATIENCE, _SPY_PATIENCE = 1.0, 5.0
# Bytes of stacks that are worth reading.
_LONGEST = 1 << 17
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
        text = Path(f'/proc/{pid}/stat').read_text(errors='replace')
    except OSError:
        return 'dead'
    # After the name, which may have spaces in it.
    letter = text.rpartition(')')[2].split()[:1]
    return _STATES.get(letter[0], '') if letter else ''


def waits_in(pid: int) -> str:
    """The function of the kernel that a process waits in, '' if unknown."""
    try:
        text = Path(f'/proc/{pid}/wchan').read_text(errors='replace')
    except OSError:
        return ''
    return '' if text in ('', '0') else text


def ask_for_stacks(pid: int, file: Path | None) -> str:
    """The stacks of a process, written by itself or read by py-spy.

    Args:
        pid (int): The process.
        file (Path, optional): Where it writes its stacks to when it gets
            the signal for that, if it does.
    """
    text = ''
    if file is not None and catches(pid, STACKS):
        with suppress(OSError):
            text = _ask(pid, file)
    return text or _spy(pid)


def _ask(pid: int, file: Path) -> str:
    before = file.stat().st_size
    os.kill(pid, STACKS)
    size, deadline = before, time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = file.stat().st_size
        if now == size > before:
            break
        size = now
    with open(file, 'rb', opener=read_only) as opened:
        opened.seek(before)
        return opened.read(_LONGEST).decode(errors='replace')


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
    return done.stdout[:_LONGEST] if done.returncode == 0 else ''
