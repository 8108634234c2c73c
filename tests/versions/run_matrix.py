"""The tests with other Pythons, torches and mmengines: `make test-versions`.

    python tests/versions/run_matrix.py [--row N ...] [--workers N]
        [--venvs FOLDER] [--tests PATH ...]

Each row of ``matrix.json`` gets a virtual environment of its own below
``.venvs``, filled from wherever pip is configured to look. The suite runs in
it folder by folder, with a line of counts for each; what pytest said is in
the environment's ``logs``. A row whose interpreter or wheels cannot be had is
printed with the reason, not run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_COUNTS = re.compile(r'(\d+) (passed|failed|skipped|error)')


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


def make_venv(row: dict[str, Any], venvs: Path) -> Path:
    """The Python of a virtual environment with what a row asks for."""
    name = 'py{python}-torch{torch}-mmengine{mmengine}'.format(**row)
    folder = venvs / name
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
        for part in ('runtime', 'demo', 'completion', 'tests', 'probing')
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


def parts_of_suite() -> list[str]:
    """What is run by itself: each folder of tests, and the files beside."""
    folders = {path.parent for path in ROOT.glob('tests/*/test_*.py')}
    names = sorted(str(folder.relative_to(ROOT)) for folder in folders)
    return [*names, 'tests/test_*.py']


def run_part(python: Path, workers: int, part: str) -> Counter[str]:
    """How many tests of a part passed, failed, were skipped or broke."""
    logs = python.parents[1] / 'logs'
    logs.mkdir(exist_ok=True)
    log = logs / (re.sub(r'\W+', '_', part) + '.log')
    paths = sorted(map(str, ROOT.glob(part))) or [part]
    command = [str(python), '-m', 'pytest', '-q', f'-n{workers}', *paths]
    environment = {
        **os.environ,
        'PYTHONPATH': str(ROOT),
        # It takes long enough for other work to go on beside it.
        'MMSTABLE_TEST_PATIENCE': '10',
        # Tests run `mmstable` and `torchrun` of the row, not of the machine.
        'PATH': os.pathsep.join([str(python.parent), os.environ['PATH']]),
    }
    with log.open('w') as stream:
        code = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            stdout=stream,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    last = log.read_text().strip().splitlines()[-1:]
    counts: Counter[str] = Counter()
    for number, word in _COUNTS.findall(' '.join(last)):
        counts[word] += int(number)
    # A run that broke off is not one in which nothing failed.
    if code and not counts['failed']:
        counts['error'] = max(counts['error'], 1)
    return counts


def _output(command: list[str]) -> str | None:
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return None if result.returncode else result.stdout


def run_row(row: dict[str, Any], options: argparse.Namespace) -> bool:
    """Run the parts in a row's environment; whether nothing failed."""
    versions = '{python} | {torch} | {mmengine}'.format(**row)
    try:
        python = make_venv(row, options.venvs.resolve())
    except NotToBeHad as error:
        print(f'| {versions} | not run: {error} |', flush=True)
        return False
    total: Counter[str] = Counter()
    for part in options.tests or parts_of_suite():
        counts = run_part(python, options.workers, part)
        total += counts
        print(f'| {versions} | {part} | {_table(counts)} |', flush=True)
    print(f'| {versions} | all of these | {_table(total)} |', flush=True)
    return not total['failed'] and not total['error']


def _table(counts: Counter[str]) -> str:
    words = ('passed', 'skipped', 'failed', 'error')
    return ' | '.join(f'{counts[word]} {word}' for word in words)


def main() -> int:
    """Run the rows and print a line of each part."""
    rows = json.loads(Path(__file__).with_name('matrix.json').read_text())
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--row', type=int, nargs='+', default=range(len(rows)))
    parser.add_argument('--workers', type=int, default=2)
    parser.add_argument('--venvs', type=Path, default=ROOT / '.venvs')
    parser.add_argument('--tests', nargs='+', default=[])
    options = parser.parse_args()
    good = [run_row(rows[number], options) for number in options.row]
    return int(not all(good))


if __name__ == '__main__':
    sys.exit(main())
