"""What ``mmstable check`` finds in the configs that OpenMMLab publishes.

The wheels are downloaded and unzipped, not installed: configs are read with
mmengine, as in training, but what they import is not there. The machine is a
made-up one, so that the figures do not depend on where this runs: 8 GPUs, 128
cores, all files there. The number of ranks is the one in the name of a config
(``8xb32``), or else the one its package recommends.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from results import DEFAULT_FOLDER, Row, format_table, write_json

from mmstable import register_all
from mmstable.check.check_config import FAILED, check_config
from mmstable.check.config_tree import ConfigView
from mmstable.check.machine import Machine
from mmstable.check.rule import RULES
from mmstable.cli.config import load_config, plain_settings
from mmstable.errors import UsageError

CACHE = Path.home() / '.cache' / 'mmstable' / 'check_corpus'
# Version, folder of the package, and on how many GPUs it trains by default.
PACKAGES = {
    'mmpretrain': ('1.2.0', 'mmpretrain', 8),
    'mmsegmentation': ('1.2.2', 'mmseg', 4),
    'mmdet': ('3.3.0', 'mmdet', 8),
}
MACHINE = Machine(
    cores=128,
    shared_memory=256 * 10**9,
    gpus=8,
    bf16=lambda: True,
    disk=lambda path: 10**13,
    exists=lambda path: True,
)
# Above this share a rule is reviewed, and justified in its docstring.
REVIEWED = 5.0


class Outcome(NamedTuple):
    """What became of all configs.

    Args:
        checked (int): How many were looked through.
        fired (Counter): On how many of them each rule fired.
        unreadable (Counter): Why others could not be read.
        failures (list): Rules that failed, and where.
        slowest (float): Seconds of the processor that the slowest one took.
    """

    checked: int
    fired: Counter[str]
    unreadable: Counter[str]
    failures: list[str]
    slowest: float


def fetch(package: str, cache: Path) -> Path:
    """The folder with the configs of a package."""
    version, folder, _ = PACKAGES[package]
    target = cache / f'{package}-{version}'
    if not target.is_dir():
        command = [sys.executable, '-m', 'pip', 'download', '--no-deps', '-q']
        command += ['--dest', str(cache), f'{package}=={version}']
        subprocess.run(command, check=True)
        [wheel] = cache.glob(f'{package}-{version}-*.whl')
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
    return target / folder / '.mim' / 'configs'


def configs(cache: Path) -> Iterator[tuple[Path, int]]:
    """Every config that can be trained with, and its number of ranks."""
    for package, (_, _, ranks) in PACKAGES.items():
        for path in sorted(fetch(package, cache).rglob('*.py')):
            if '_base_' not in path.parts:
                named = re.findall(r'(\d+)xb\d+', path.name)
                yield path, int(named[-1]) if named else ranks


def check_all(found: list[tuple[Path, int]]) -> Outcome:
    """Look them through."""
    outcome = Outcome(0, Counter(), Counter(), [], 0.0)
    for path, ranks in found:
        try:
            cfg = load_config(str(path), import_modules=False)
        except UsageError as error:
            outcome.unreadable[type(error.__cause__).__name__] += 1
            continue
        start = time.process_time()
        view = ConfigView(plain_settings(cfg), MACHINE, ranks, str(path))
        findings = check_config(view)
        outcome = outcome._replace(
            checked=outcome.checked + 1,
            slowest=max(outcome.slowest, time.process_time() - start),
        )
        outcome.fired.update({one.id for one in findings})
        outcome.failures.extend(
            f'{one.path} on {path.name}: {one.what}'
            for one in findings
            if one.id == FAILED
        )
    return outcome


def rows_of(outcome: Outcome) -> list[Row]:
    """The table: each rule, and how often it fired."""
    rows = [
        Row('all configs', 'looked through', outcome.checked),
        Row('all configs', 'rules that failed', len(outcome.failures), 0),
        Row(
            'slowest config', 'CPU seconds of all rules', outcome.slowest, 0.3
        ),
    ]
    rows += [
        Row('not readable', why, count)
        for why, count in outcome.unreadable.items()
    ]
    for id, one in RULES.items():
        share = 100 * outcome.fired[id] / max(1, outcome.checked)
        note = 'reviewed' if share > REVIEWED else ''
        what = f'{id}, {one.severity.value}'
        rows.append(Row('% of configs', what, share, note=note))
    return rows


def corpus(description: str | None, name: str) -> tuple[list, Path]:
    """The configs that the command line wants, and where the JSON goes.

    Args:
        description (str, optional): What the benchmark does.
        name (str): Its name.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument('--cache', type=Path, default=CACHE)
    parser.add_argument(
        '--every', type=int, default=1, help='take one config of so many'
    )
    parser.add_argument(
        '--json', type=Path, default=DEFAULT_FOLDER / f'{name}.json'
    )
    args = parser.parse_args()
    register_all()
    try:
        return list(configs(args.cache))[:: args.every], args.json
    except subprocess.CalledProcessError:
        parser.exit(0, 'skipped: the packages cannot be downloaded\n')


def main() -> None:
    """Print the table and write it as JSON."""
    found, path = corpus(__doc__, 'check_corpus')
    outcome = check_all(found)
    rows = rows_of(outcome)
    print(format_table(rows))
    print('\n'.join(outcome.failures))
    write_json(path, rows, {})


if __name__ == '__main__':
    main()
