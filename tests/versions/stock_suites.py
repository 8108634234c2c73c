"""mmengine's own tests, with mmstable's classes in place of its own.

    python tests/versions/stock_suites.py MMENGINE/tests [--only CLASS ...]

MMENGINE is a checkout of the mmengine release that is installed: its tests
are not in the wheel. They run with the safe classes put in place; what fails
runs once more as it is, and what passes then is printed. pytest is told to
load this file as a plugin, which does the replacing. Other arguments are
pytest's.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
SUITES = ('test_hooks', 'test_runner', 'test_optim')
# Where mmengine has a class, and the one that is put in its place.
PAIRS = {
    'SafeIterBasedTrainLoop': ('runner', 'LOOPS', 'IterBasedTrainLoop'),
    'SafeEpochBasedTrainLoop': ('runner', 'LOOPS', 'EpochBasedTrainLoop'),
    'SafeCheckpointHook': ('hooks', 'HOOKS', 'CheckpointHook'),
    'SafeEMAHook': ('hooks', 'HOOKS', 'EMAHook'),
    'SafeParamSchedulerHook': ('hooks', 'HOOKS', 'ParamSchedulerHook'),
    'SafeOptimWrapper': ('optim', 'OPTIM_WRAPPERS', 'OptimWrapper'),
    'SafeAmpOptimWrapper': ('optim', 'OPTIM_WRAPPERS', 'AmpOptimWrapper'),
}
_VARIABLE = 'MMSTABLE_PUT_IN_PLACE'


def pytest_configure() -> None:
    """Put the classes in place, before any test is imported."""
    chosen = os.environ.get(_VARIABLE, '').split()
    if not chosen:
        return
    import mmstable

    # All of them first: a safe class may be made of others' stock ones.
    safe_classes = {name: getattr(mmstable, name) for name in chosen}
    for name, safe in safe_classes.items():
        _put(safe, *PAIRS[name])


def _put(safe: type, package: str, registry: str, stock_name: str) -> None:
    import mmengine

    stock = getattr(sys.modules[f'mmengine.{package}'], stock_name)
    for name, module in list(sys.modules.items()):
        # Where tests import it from, and where the runner builds its loops.
        # Elsewhere mmengine asks for instances of it: those are the same.
        builds = package == 'runner' and name == 'mmengine.runner.runner'
        is_package = name.split('.')[0] == 'mmengine' and hasattr(
            module, '__path__'
        )
        if is_package or builds:
            for key, value in list(vars(module).items()):
                if value is stock:
                    setattr(module, key, safe)
    getattr(mmengine.registry, registry)._module_dict[stock_name] = safe


def run(tests: Path, chosen: list[str], extra: list[str]) -> dict[str, str]:
    """What became of each test: 'passed', 'failure', 'error' or 'skipped'.

    Args:
        tests (Path): mmengine's tests.
        chosen (list[str]): The safe classes to put in place.
        extra (list[str]): Arguments for pytest.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, 'report.xml')
        command = [
            sys.executable,
            '-m',
            'pytest',
            '-q',
            f'--junitxml={report}',
        ]
        command += ['-p', 'tests.versions.stock_suites', *extra]
        command += [str(tests / suite) for suite in SUITES]
        subprocess.run(
            command,
            cwd=tests.parent,
            env={
                **os.environ,
                'PYTHONPATH': str(ROOT),
                _VARIABLE: ' '.join(chosen),
            },
            stdout=sys.stderr,
            check=False,
        )
        return {
            f'{case.get("classname")}::{case.get("name")}': _outcome(case)
            for case in ElementTree.parse(report).iter('testcase')
        }


def _outcome(case: Any) -> str:
    for kind in ('failure', 'error', 'skipped'):
        if case.find(kind) is not None:
            return kind
    return 'passed'


def main() -> int:
    """Run both, print the counts and all that got worse."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('tests', type=Path)
    parser.add_argument('--only', nargs='+', choices=PAIRS, default=[*PAIRS])
    arguments, extra = parser.parse_known_args()
    tests = arguments.tests.resolve()
    with tempfile.TemporaryDirectory() as cache:
        extra += ['-o', f'cache_dir={cache}']
        safe = run(tests, arguments.only, extra)
        stock = run(tests, [], [*extra, '--lf', '--lfnf=none'])
    print('with safe classes:', dict(Counter(safe.values())))
    print('those that failed, with stock ones:', dict(Counter(stock.values())))
    worse = [name for name in stock if stock[name] == 'passed']
    for name in worse:
        print(f'fails with safe classes only: {name}')
    return int(bool(worse))


if __name__ == '__main__':
    sys.exit(main())
