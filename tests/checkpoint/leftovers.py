"""What a process leaves behind that is killed while it writes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

DYING = """
import os, signal, sys
from pathlib import Path
from mmstable.io.files import atomic_file

with atomic_file(Path(sys.argv[1], 'iter_99.pth')) as stream:
    stream.write(b'half')
    os.kill(os.getpid(), signal.SIGKILL)
"""


def leave_half_a_file(folder: Path) -> Path:
    """The temporary file of a process that was killed in the middle."""
    before = set(folder.iterdir())
    command = [sys.executable, '-c', DYING, str(folder)]
    done = subprocess.run(command, check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = set(folder.iterdir()) - before
    return left
