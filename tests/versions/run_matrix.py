"""The tests with other Pythons, torches and mmengines: `make test-versions`.

    python tests/versions/run_matrix.py [--row N ...] [--workers N] [TESTS ...]

Each row of ``matrix.json`` gets a virtual environment of its own below
``.venvs``, filled from wherever pip is configured to look. A row whose
interpreter or wheels cannot be had is printed with the reason, not run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_COUNTS = re.compile(r'\d+ (?:passed|failed|skipped|errors?)\b')


class NotToBeHad(Exception):
    """A row lacks its interpreter or its wheels."""


def find_python(version: str) -> str:
    """An interpreter of a version, from PATH, pyenv or uv."""
    pyenv = Path.home() / '.pyenv' / 'versions'
    managed = sorted(pyenv.glob(f'{version}.*/bin/python'))
    candidates = [f'python{version}', *map(str, managed)]
    uv = shutil.which('uv')
    if uv is not None:
        found = _output([uv, 'python', 'find', version])
        candidates += [found.strip()] if found else []
    for candidate in candidates:
        code = 'import sys; print("%d.%d" % sys.version_info[:2])'
        if (_output([candidate, '-c', code]) or '').strip() == version:
            return candidate
    raise NotToBeHad(f'no Python {version} on this machine')


def make_venv(row: dict[str, Any]) -> Path:
    """The Python of a virtual environment with what a row asks for."""
    name = 'py{python}-torch{torch}-mmengine{mmengine}'.format(**row)
    folder = ROOT / '.venvs' / name
    python = folder / 'bin' / 'python'
    ready = folder / '.ready'
    if ready.exists():
        return python
    subprocess.run(
        [find_python(row['python']), '-m', 'venv', folder], check=True
    )
    # By itself and first, so that no other requirement chooses its version.
    _install(python, [f'torch=={row["torch"]}', *row['with']])
    needs = [
        f'-r{ROOT}/requirements/{part}.txt'
        for part in ('runtime', 'demo', 'tests')
    ]
    pins = [f'torch=={row["torch"]}', f'mmengine=={row["mmengine"]}']
    _install(python, [*pins, *row['with'], *needs])
    ready.touch()
    return python


def _install(python: Path, what: list[str]) -> None:
    command = [str(python), '-m', 'pip', 'install', '-q', *what]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False
    )
    if result.returncode:
        lines = result.stderr.strip().splitlines()
        errors = [line for line in lines if line.startswith('ERROR')]
        raise NotToBeHad((errors or lines or ['pip failed'])[-1])


def run_tests(python: Path, workers: int, tests: list[str]) -> str:
    """The counts that pytest ends with."""
    log = python.parents[1] / 'tests.log'
    command = [str(python), '-m', 'pytest', '-q', f'-n{workers}', *tests]
    environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
    with log.open('w') as stream:
        subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdout=stream,
            stderr=subprocess.STDOUT,
            check=False,
        )
    last = log.read_text().strip().splitlines()[-1:]
    counts = _COUNTS.findall(' '.join(last))
    return ', '.join(counts) or f'no counts: see {log}'


def _output(command: list[str]) -> str | None:
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return None if result.returncode else result.stdout


def main() -> int:
    """Run the rows and print a line of each."""
    rows = json.loads(Path(__file__).with_name('matrix.json').read_text())
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--row', type=int, nargs='+', default=range(len(rows)))
    parser.add_argument('--workers', type=int, default=2)
    parser.add_argument('tests', nargs='*', default=[])
    arguments = parser.parse_args()
    bad = 0
    for number in arguments.row:
        row = rows[number]
        try:
            python = make_venv(row)
            result = run_tests(python, arguments.workers, arguments.tests)
        except NotToBeHad as error:
            result = f'not run: {error}'
        bad += not re.fullmatch(r'(\d+ (passed|skipped)(, )?)+', result)
        versions = '| {python} | {torch} | {mmengine} |'.format(**row)
        print(f'{versions} {result} |', flush=True)
    return int(bad > 0)


if __name__ == '__main__':
    sys.exit(main())
