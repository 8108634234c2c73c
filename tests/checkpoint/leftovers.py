"""What a process leaves behind that is killed while it writes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from mmstable.io.files import atomic_file


def leave_half_a_file(folder: Path) -> Path:
    """The temporary file of a process that was killed in the middle."""
    before = set(folder.iterdir())
    pid = os.fork()
    if pid == 0:
        try:
            with atomic_file(folder / 'iter_99.pth') as stream:
                stream.write(b'half')
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    __, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    (left,) = set(folder.iterdir()) - before
    return left
