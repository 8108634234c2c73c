"""``make bench``: every benchmark, in one table, with JSON and plots.

Each runs in a process of its own and writes its figures to a folder; here
they are read, put together, printed and drawn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_plots import draw_limits, draw_survival
from results import DEFAULT_FOLDER, Row, format_table, machine_facts

HERE = Path(__file__).resolve().parent
# In the order of the table: name, and what makes it short.
BENCHMARKS: dict[str, tuple[str, ...]] = {
    'step_overhead': ('--quick',),
    'hook_overhead': ('--quick',),
    'guard_cost': ('--quick',),
    'python_calls': (),
    'ddp_overhead': ('--quick',),
    'watchdog_cost': ('--quick',),
    'memory_guard_cost': ('--quick',),
    'headroom_cost': ('--quick',),
    'profile_cost': ('--quick',),
    'memory_presets': ('--quick',),
    'verdict_model': ('--quick',),
    'startup_cost': ('--quick',),
    'save_cost': ('--quick',),
    'load_cost': ('--quick',),
    'resume_skip': ('--quick',),
    'guard_rates': ('--count', '5000', '--no-runs'),
    'forensics': ('--only', 'log(0)'),
    'check_corpus': ('--every', '200'),
    'protect_corpus': ('--every', '200'),
    'device_counts': (),
    'survival': ('--quick',),
}
# They write no figures; what they print is kept.
PRINTED: dict[str, tuple[str, ...]] = {
    'read_events': ('--events', '20000'),
    'report_size': ('--events', '20000'),
    'start_scale': ('--iterations', '10'),
    'gpt_outliers': ('--iterations', '150', '--seeds', '1'),
}


def run_one(
    name: str, folder: Path, quick: bool, python: str = sys.executable
) -> str:
    """Run a benchmark; why it failed, or ''."""
    short = {**BENCHMARKS, **PRINTED}[name] if quick else ()
    command = [python, str(HERE / f'{name}.py'), *short]
    if name in BENCHMARKS:
        command += ['--json', str(folder / f'{name}.json')]
    path = os.pathsep.join(
        one for one in (str(HERE.parent), os.environ.get('PYTHONPATH')) if one
    )
    with open(folder / f'{name}.txt', 'w', encoding='utf-8') as out:
        done = subprocess.run(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, 'PYTHONPATH': path},
            check=False,
        )
    if done.returncode == 0:
        return ''
    lines = (folder / f'{name}.txt').read_text('utf-8').split('\n')
    last = next((line for line in reversed(lines) if line.strip()), '')
    return f'exit code {done.returncode}: {last[:100]}'


def read_rows(folder: Path, names: Sequence[str]) -> list[Row]:
    """The figures of these benchmarks, each with its name."""
    rows = []
    for name in names:
        for one in _load(folder / f'{name}.json').get('rows', []):
            # A zero without a limit tells nothing.
            if one.get('value') or one.get('limit') is not None:
                facts = {k: v for k, v in one.items() if k != 'holds'}
                facts['case'] = f'{name}: {facts["case"]}'
                rows.append(Row(**facts))
    return rows


def read_survival(folder: Path) -> list[dict[str, Any]]:
    """Who survived what."""
    return _load(folder / 'survival.json').get('rows', [])


def survival_table(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each fault, a column for each trainer."""
    if not rows:
        return 'survival: no figures'
    names = list(dict.fromkeys(row['contender'] for row in rows))
    faults = list(dict.fromkeys(row['fault'] for row in rows))
    alive = {(r['fault'], r['contender']): r['survives'] for r in rows}
    lines = [['survives', *names]]
    for fault in faults:
        cells = [alive.get((fault, name)) for name in names]
        lines.append([fault, *(_YES_NO[cell] for cell in cells)])
    counts = [sum(bool(alive.get((f, n))) for f in faults) for n in names]
    lines.append(['in all', *(f'{one} of {len(faults)}' for one in counts)])
    widths = [max(map(len, column)) for column in zip(*lines)]
    return '\n'.join(
        '  '.join(f'{c:{w}}' for c, w in zip(line, widths)).rstrip()
        for line in lines
    )


_YES_NO = {True: 'yes', False: 'NO', None: '-'}


def _load(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    return json.loads(path.read_text(encoding='utf-8'))


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--quick', action='store_true', help='does everything run?'
    )
    parser.add_argument(
        '--only', nargs='+', metavar='NAME', choices=(*BENCHMARKS, *PRINTED)
    )
    parser.add_argument(
        '--peers',
        metavar='PYTHON',
        default=sys.executable,
        help='a Python with requirements/peers.txt, for survival.py',
    )
    parser.add_argument('--folder', type=Path, default=DEFAULT_FOLDER)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    names = args.only or [*BENCHMARKS, *PRINTED]
    failed = {}
    for name in names:
        began = time.monotonic()
        # No figures of an earlier run in the table of this one.
        (args.folder / f'{name}.json').unlink(missing_ok=True)
        python = args.peers if name == 'survival' else sys.executable
        failed[name] = run_one(name, args.folder, args.quick, python)
        seconds = time.monotonic() - began
        word = failed[name] or 'done'
        print(f'{name}: {word} ({seconds:.0f} s)', flush=True)
    rows, survival = read_rows(args.folder, names), read_survival(args.folder)
    print(f'\n{format_table(rows)}\n')
    for name in names:
        if name in PRINTED:
            text = (args.folder / f'{name}.txt').read_text('utf-8')
            print(f'{name}:\n{text}')
    if 'survival' in names:
        print(survival_table(survival))
        draw_survival(survival, args.folder / 'survival.svg')
    draw_limits(rows, args.folder / 'limits.svg')
    summary = {
        'machine': machine_facts(),
        'quick': args.quick,
        'failed': {name: why for name, why in failed.items() if why},
        'rows': [{**vars(row), 'holds': row.holds} for row in rows],
        'survival': survival,
    }
    path = args.folder / 'bench.json'
    path.write_text(json.dumps(summary, indent=2) + '\n', encoding='utf-8')
    print(f'\nwritten to {path}, limits.svg and survival.svg beside it')
    return 1 if summary['failed'] else 0


if __name__ == '__main__':
    sys.exit(main())
