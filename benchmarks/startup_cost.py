"""What does it cost to start?

A run of one iteration by ``mmstable train`` against the same config with
mmengine's own runner: wall time of the whole process, interleaved. And what
``import mmstable`` adds to an interpreter that has imported mmengine.

The model is the RTMDet-tiny of mmdetection, in the environment that
``tests/clients/make_venv.sh`` makes; ``--quick`` takes the toy of the tests.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from interleaved import Contender, race
from results import DEFAULT_FOLDER, Row, publish

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.clients.tiny_data import write_data  # noqa: E402
from tests.start_calls import write_toy  # noqa: E402

CLIENTS = ROOT / 'tests' / 'clients'
LIMIT, IMPORT_LIMIT, MODULES_LIMIT = 1.05, 0.2, 90
# What the train scripts of OpenMMLab's projects do.
STOCK = """
import sys
from mmengine.config import Config
from mmengine.runner import Runner
cfg = Config.fromfile(sys.argv[1])
cfg.work_dir = sys.argv[2]
Runner.from_cfg(cfg).train()
"""
# A full collection that falls into it looks at the objects of torch.
IMPORT = """
import gc, json, sys, time
import mmengine.runner
clock = time.process_time
collections = []
gc.callbacks.append(lambda phase, info: collections.append(clock()))
start = clock()
import mmstable
seconds = clock() - start
collecting = sum(collections[1::2]) - sum(collections[::2])
ours = [name for name in sys.modules if name.split('.')[0] == 'mmstable']
print(json.dumps([seconds, collecting, len(ours)]))
"""


class Starts:
    """Starts processes in a folder.

    Args:
        python (str): The interpreter.
        config (Path): What is trained.
        folder (Path): Where.
    """

    def __init__(self, python: str, config: Path, folder: Path) -> None:
        self._python = python
        self._config = str(config)
        self._folder = folder
        self._numbers = itertools.count()
        # CPU seconds of every run, in the order in which they were started.
        self.cpu: dict[str, list[float]] = {'stock': [], 'ours': []}
        paths = [str(CLIENTS / 'stubs'), str(ROOT), str(folder)]
        self._environment = {
            **os.environ,
            'PYTHONPATH': os.pathsep.join(paths),
            'OMP_NUM_THREADS': '1',
            # As after an installation: modules are compiled once.
            'PYTHONDONTWRITEBYTECODE': '',
            'PYTHONPYCACHEPREFIX': str(folder / 'bytecode'),
        }

    def stock(self) -> None:
        """Train with mmengine's runner."""
        before = _cpu_seconds()
        self._run('-c', STOCK, self._config, self._work_dir())
        self.cpu['stock'].append(_cpu_seconds() - before)

    def ours(self) -> None:
        """Train with ``mmstable train``."""
        words = ['train', self._config, '--work-dir', self._work_dir()]
        before = _cpu_seconds()
        self._run('-m', 'mmstable', *words)
        self.cpu['ours'].append(_cpu_seconds() - before)

    def imported(self) -> tuple[float, float, int]:
        """CPU seconds, those of garbage collections, and modules."""
        seconds, collecting, modules = json.loads(self._run('-c', IMPORT))
        return seconds, collecting, modules

    def _work_dir(self) -> str:
        return f'run_{next(self._numbers)}'

    def _run(self, *words: str) -> str:
        done = subprocess.run(
            [self._python, *words],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f'{words}: {done.stdout}{done.stderr}'[-3000:])
        return done.stdout


def _cpu_seconds() -> float:
    """CPU seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(
    starts: Starts, case: str, rounds: int
) -> tuple[list[Row], dict[str, object]]:
    result = race(
        [Contender('stock', starts.stock), Contender('ours', starts.ours)],
        rounds,
        warmup=1,
    )
    imports = [starts.imported() for __ in range(max(rounds, 5))]
    seconds, collecting, modules = zip(*imports)
    note = f'{result.median("ours"):.2f} s / {result.median("stock"):.2f} s'
    # Without the warm-up, which has compiled modules.
    ours, stock = (median(starts.cpu[name][1:]) for name in ('ours', 'stock'))
    rows = [
        Row(
            case,
            'wall time, mmstable train / stock',
            result.ratio('ours', 'stock'),
            LIMIT,
            result.best_ratio('ours', 'stock'),
            result.noise,
            note,
        ),
        Row(
            case,
            'CPU time, mmstable train / stock',
            ours / stock,
            note=f'{ours:.2f} s / {stock:.2f} s',
        ),
        Row(
            'import mmstable',
            'CPU seconds',
            median(seconds),
            IMPORT_LIMIT,
            min(seconds),
            note=f'{median(collecting):.2f} s of it collect garbage',
        ),
        Row('import mmstable', 'modules', modules[0], MODULES_LIMIT),
    ]
    return rows, {case: result.as_dict()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--quick', action='store_true', help='the toy model: does it run?'
    )
    parser.add_argument('--rounds', type=int, default=7)
    parser.add_argument(
        '--python',
        default=str(ROOT / '.venvs' / 'clients' / 'bin' / 'python'),
        help='has mmdetection (default: that of tests/clients)',
    )
    parser.add_argument(
        '--json', type=Path, default=DEFAULT_FOLDER / 'startup_cost.json'
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.quick:
            starts = Starts(sys.executable, write_toy(folder), folder)
            rows, races = measure(starts, 'toy', rounds=1)
        else:
            write_data(folder)
            config = CLIENTS / 'configs' / 'rtmdet.py'
            starts = Starts(args.python, config, folder)
            rows, races = measure(starts, 'RTMDet-tiny', args.rounds)
    publish(args.json, rows, races)


if __name__ == '__main__':
    main()
