"""``make demo``: a run that is broken in eleven ways, and what comes of it.

Stock mmengine gets a fresh run for every fault. ``mmstable train`` gets all
of them in one run, of the same config, which has no line of mmstable in it
but the faults, a short limit for hangs, and snapshots at shorter intervals.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

# Before torch is there to read it: one core for each of the two runs.
os.environ.setdefault('OMP_NUM_THREADS', '1')

from demo_runs import (  # noqa: E402
    FAULTS,
    MOST_RESTARTS,
    PATIENCE,
    child_environment,
    clear,
    run_stock,
    schedule,
    start_protected,
    write_drill,
)
from demo_story import read_story  # noqa: E402
from results import machine_facts  # noqa: E402
from survival import NEAR, survives  # noqa: E402
from survival_runs import Result, is_finite, last_miou  # noqa: E402

from mmstable.report.page import REPORT_NAME  # noqa: E402

CLEAN = 'no fault'


class Progress:
    """Prints lines, and what a run in the background has said meanwhile."""

    def __init__(self, output: Path) -> None:
        self._output, self._read = output, 0
        self._began = time.monotonic()

    def say(self, who: str, text: str) -> None:
        """Print a line with the time."""
        self.catch_up()
        self._print(who, text)

    def catch_up(self) -> None:
        """Print what the protected run has said."""
        with open(self._output, encoding='utf-8', errors='replace') as file:
            file.seek(self._read)
            for line in file.read().splitlines():
                text = worth_telling(line)
                if text:
                    self._print('mmstable', text)
            self._read = file.tell()

    def _print(self, who: str, text: str) -> None:
        seconds = time.monotonic() - self._began
        print(f'{seconds:4.0f} s  {who:8}  {text[:100]}', flush=True)


def worth_telling(line: str) -> str:
    """The part of a log line that belongs into the demo, if any."""
    for pattern in (
        r'mmstable: injected: (Iter \d+: \w+).*',
        r'mmstable train: (the run ended: .*)',
        r'mmstable train: (resuming from) .*/(\S+\.pth)',
    ):
        found = re.search(pattern, line)
        if found:
            return ' '.join(found.groups())
    return ''


def what_is_left(result: Result, clean: Result) -> str:
    """A cell of the table, about a run of stock mmengine."""
    told = result.told.replace('nothing', 'nothing said')
    if not result.finished:
        return f'LOST: {told}'
    if not result.finite:
        return f'NaN model: {told}'
    word = '' if survives(result, clean) else 'WORSE: '
    return f'{word}mIoU {result.miou:.1f}, {told}'


def format_table(rows: Sequence[tuple[str, str, str]]) -> str:
    """Aligned text with a line below the first row."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [
        '  '.join(f'{c:{w}}' for c, w in zip(row, widths)).rstrip()
        for row in rows
    ]
    lines.insert(1, '  '.join('-' * width for width in widths))
    return '\n'.join(lines)


def compare(
    stock: dict[str, Result], folder: Path, code: int, iterations: int
) -> list[tuple[str, str, str]]:
    """The rows of the table, and the sums below them."""
    clean, story = stock[CLEAN], read_story(folder)
    rows = [('planted fault', 'stock mmengine', 'mmstable')]
    for name, at in schedule(iterations).items():
        cell = what_is_left(stock[name], clean)
        rows.append((name, cell, story.get(at, 'did not happen')))
    alive = sum(survives(stock[name], clean) for name in FAULTS)
    miou = last_miou(folder)
    good = code == 0 and is_finite(folder) and miou >= NEAR * clean.miou
    rows.append(
        (
            'survived',
            f'{alive} of {len(FAULTS)}, each alone',
            f'{"all" if good else "NOT all"} {len(FAULTS)}, in one run',
        )
    )
    rows.append(
        ('mIoU at the end', f'{clean.miou:.1f} without faults', f'{miou:.1f}')
    )
    return rows


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--iterations', type=int, default=400)
    parser.add_argument('--work-dir', type=Path, default='work_dirs/demo')
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Train both ways, print the table, write the report."""
    args = parse_args(argv)
    began = time.monotonic()
    folder = args.work_dir.resolve()
    drill, protected = folder / 'drill.py', folder / 'mmstable'
    clear(folder / 'stock', protected)
    write_drill(drill, args.iterations)
    facts = machine_facts()
    print(
        f'The quick start, made small: {args.iterations} iterations in fp16; '
        f'mmengine {facts["mmengine"]}, torch {facts["torch"]}\n'
        f'stock     a fresh run for each of {len(FAULTS)} faults, given up '
        f'after {PATIENCE:.0f} s of silence\n'
        f'mmstable  all of them in one: mmstable train {drill.name} '
        f'--max-restarts {MOST_RESTARTS}\n',
        flush=True,
    )
    process = start_protected(drill, protected)
    try:
        progress = Progress(protected / 'output.txt')
        stock = {}
        for name in (CLEAN, *FAULTS):
            place = folder / 'stock' / re.sub(r'\W+', '_', name)
            fault = None if name == CLEAN else name
            stock[name] = run_stock(place, args.iterations, fault)
            cell = what_is_left(stock[name], stock[CLEAN])
            progress.say('stock', f'{name}: {cell}')
        while process.poll() is None:
            progress.catch_up()
            time.sleep(0.5)
        progress.say('mmstable', f'ended with exit code {process.returncode}')
    finally:
        process.terminate()
        process.wait()
    subprocess.run(
        [sys.executable, '-m', 'mmstable', 'report', str(protected)],
        env=child_environment(),
        check=False,
    )
    rows = compare(stock, protected, process.returncode, args.iterations)
    print(f'\n{format_table(rows)}\n')
    print(f'Report: {protected / REPORT_NAME}')
    print(f'{time.monotonic() - began:.0f} s in all')
    return 0 if rows[-2][2].startswith('all') else 1


if __name__ == '__main__':
    sys.exit(main())
