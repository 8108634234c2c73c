"""Start ``mmstable`` in its own process, and see what it did."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.preloaded import Preloaded

ROOT = Path(__file__).resolve().parents[2]
# As pip writes it.
SCRIPT = """
import re
import sys
from mmstable_command import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit(main())
"""


class Screen(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def console_script(folder: Path) -> list[str]:
    """The command ``mmstable``, as an installation has it."""
    path = folder / 'bin' / 'mmstable'
    path.parent.mkdir(exist_ok=True)
    path.write_text(SCRIPT)
    return [sys.executable, str(path)]


def path_without_torch(folder: Path) -> str:
    """A path on which the heavy packages cannot be imported."""
    blocked = folder / 'blocked'
    blocked.mkdir(exist_ok=True)
    for name in ('mmengine', 'numpy', 'torch'):
        text = "raise SystemExit('tried to import it')\n"
        (blocked / f'{name}.py').write_text(text)
    return f'{blocked}:{ROOT}'


def start(
    command: list[str], folder: Path, path: str = str(ROOT), **env: str
) -> subprocess.Popen[str]:
    """Start a command in a folder; what follows mmstable is a project."""
    variables = {**os.environ, 'PYTHONPATH': path, **env}
    is_python = command[0] == sys.executable and command[1][:2] != '-B'
    first = path.split(':', maxsplit=1)[0]
    if is_python and first == str(ROOT) and 'PYTHONSAFEPATH' not in env:
        return Preloaded(command[1:], folder, variables)
    return subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(
    command: list[str], folder: Path, timeout: float = 100, **more: Any
) -> tuple[int, str, str]:
    """Its exit code, and what it wrote to stdout and stderr."""
    process = start(command, folder, **more)
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return process.returncode, out, err


def log_of(folder: Path) -> str:
    """All logs of a run and its continuations."""
    return ''.join(p.read_text() for p in sorted(folder.rglob('*.log')))


def iterations(folder: Path) -> list[int]:
    """The iterations that its log shows, in order."""
    found = re.findall(r'Iter\(train\)\s+\[\s*(\d+)/', log_of(folder))
    return [int(number) for number in found]
