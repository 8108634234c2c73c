"""mmengine's own tests, with mmstable's classes in place of its own.

    python tests/versions/stock_suites.py MMENGINE/tests [--only CLASS ...]

MMENGINE is a checkout of the mmengine release that is installed: its tests
are not in the wheel. They run twice, as they are and with the safe classes
put in place, and only what differs is printed. pytest is told to load this
file as a plugin, which does the replacing.
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
        # Its own module, and mmstable, still need the stock one.
        if name.split('.')[0] != 'mmengine' or name == stock.__module__:
            continue
        for key, value in list(vars(module).items()):
            if value is stock:
                setattr(module, key, safe)
    getattr(mmengine.registry, registry)._module_dict[stock_name] = safe


def run(tests: Path, chosen: list[str], extra: list[str]) -> dict[str, str]:
    """What became of each test: 'passed', 'failed', 'error' or 'skipped'."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, 'report.xml')
        command = [sys.executable, '-m', 'pytest', '-q', '--tb=short']
        command += ['-p', 'tests.versions.stock_suites']
        command += ['-p', 'no:cacheprovider', f'--junitxml={report}']
        command += [str(tests / suite) for suite in SUITES if not extra]
        environment = {
            **os.environ,
            'PYTHONPATH': str(ROOT),
            _VARIABLE: ' '.join(chosen),
        }
        log = tests / f'{"safe" if chosen else "stock"}.log'
        with log.open('w') as stream:
            subprocess.run(
                command + extra,
                cwd=tests.parent,
                env=environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
                check=False,
            )
        cases = ElementTree.parse(report).iter('testcase')
        return {
            f'{case.get("classname")}::{case.get("name")}': _outcome(case)
            for case in cases
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
    stock = run(tests, [], extra)
    safe = run(tests, arguments.only, extra)
    print('stock:', dict(Counter(stock.values())))
    print('safe: ', dict(Counter(safe.values())))
    worse = [
        name
        for name, outcome in stock.items()
        if outcome == 'passed' and safe.get(name) != 'passed'
    ]
    for name in worse:
        print(f'worse: {name}: {safe.get(name)}')
    return len(worse)


if __name__ == '__main__':
    sys.exit(main())
