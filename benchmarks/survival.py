"""What does a run survive, with mmstable and without?

The same faults, at the same iterations, for mmengine as it is, for mmstable
and for other trainers, on a small version of the quick start. A run survives
if it comes to its end, with finite weights and statistics, and with a metric
near that of the same run without faults.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from peers import PACKAGES, find_peers
from results import DEFAULT_FOLDER, machine_facts
from survival_runs import CONTENDERS, Result, run_case

# Of the metric of the same contender without faults.
NEAR = 0.9
_WEIGHT = 'encoder.1.conv.weight'
_BUFFER = 'encoder.1.bn.running_var'
FAULTS: dict[str, dict[str, Any]] = {
    'NaN gradient': dict(kind='nan_grad', param=_WEIGHT),
    'Inf gradient': dict(kind='inf_grad', param=_WEIGHT),
    'NaN loss': dict(kind='nan_loss'),
    'Inf input': dict(kind='inf_input'),
    'loss x 1000': dict(kind='spike_loss'),
    'gradients x 1000': dict(kind='spike_grad'),
    'NaN weight': dict(kind='nan_weight', param=_WEIGHT),
    'NaN running variance': dict(kind='nan_buffer', buffer=_BUFFER),
    'NaN in Adam': dict(kind='nan_state', param=_WEIGHT),
    'out of memory': dict(kind='oom'),
    'exception': dict(kind='exception'),
    'SIGTERM': dict(kind='signal', signal='SIGTERM'),
    'SIGKILL': dict(kind='signal', signal='SIGKILL'),
    'hang of a second': dict(kind='hang', seconds=1.0),
}
QUICK = ('NaN gradient', 'exception')
ALL = 'all of these'


def plan_cases(
    names: Sequence[str], iterations: int, seed: int
) -> dict[str, list[dict[str, Any]]]:
    """The faults of each case; the first has none, the last has all."""
    middle = iterations // 2 + 3
    cases: dict[str, list[dict[str, Any]]] = {'no fault': []}
    for name in names:
        cases[name] = [dict(FAULTS[name], at=middle)]
    order = list(names)
    random.Random(seed).shuffle(order)
    gap = iterations * 4 // 5 // len(order)
    first = iterations // 10
    cases[ALL] = [
        dict(FAULTS[name], at=first + gap * index)
        for index, name in enumerate(order)
    ]
    return cases


def choose_cases(
    cases: dict[str, list[dict[str, Any]]], names: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """The cases of these names, and the one to compare them with."""
    wanted = {'no fault', *names}
    return {name: case for name, case in cases.items() if name in wanted}


def survives(result: Result, clean: Result) -> bool:
    """Whether the owner of the run has what was hoped for."""
    near = result.miou >= NEAR * clean.miou
    return result.finished and result.finite and near


def measure(
    cases: dict[str, list[dict[str, Any]]],
    iterations: int,
    folder: Path,
    contenders: Sequence[str] = CONTENDERS,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Run all cases, and print a row for each."""
    rows = []
    clean: dict[str, Result] = {}
    for case, faults in cases.items():
        for contender in contenders:
            place = folder / str(seed) / case.replace(' ', '_') / contender
            result = run_case(place, contender, iterations, faults, seed)
            clean.setdefault(contender, result)
            row = {
                'fault': case,
                'contender': contender,
                'seed': seed,
                'survives': survives(result, clean[contender]),
                **asdict(result),
            }
            rows.append(row)
            print(format_row(row), flush=True)
    return rows


_HEADER = ('fault', 'trained with', 'survives', 'state', 'mIoU', 'starts')
_WIDTHS = (23, 13, 8, 10, 5, 6)


def format_row(row: dict[str, Any]) -> str:
    state = 'finite' if row['finite'] else 'NaN or Inf'
    cells = (
        row['fault'],
        row['contender'],
        'yes' if row['survives'] else 'NO',
        state if row['finished'] else 'lost',
        f'{row["miou"]:.1f}' if row['finished'] else '',
        str(row['starts']),
    )
    return f'{align(cells)}  {row["told"]}'


def summarise(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Lines with what all seeds of a case have given together."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        key = row['fault'], row['contender']
        groups.setdefault(key, []).append(row)
    for (fault, contender), own in groups.items():
        survived = sum(row['survives'] for row in own)
        values = [row['miou'] for row in own if row['finished']]
        spread = ''
        if values:
            mean = sum(values) / len(values)
            spread = f'{mean:.1f} ({min(values):.1f} to {max(values):.1f})'
        count = f'{survived}/{len(own)}'
        yield f'{fault:23}  {contender:13}  {count:5}  {spread}'


def align(cells: Sequence[str]) -> str:
    return '  '.join(f'{c:{w}}' for c, w in zip(cells, _WIDTHS))


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--quick', action='store_true', help='few faults: does it run?'
    )
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument(
        '--seeds', type=int, default=1, help='how many seeds, from --seed on'
    )
    parser.add_argument('--iterations', type=int, default=2000)
    parser.add_argument(
        '--only',
        nargs='+',
        metavar='FAULT',
        choices=(*FAULTS, ALL),
        help='these rows of the table and no others',
    )
    parser.add_argument(
        '--contenders',
        nargs='+',
        metavar='NAME',
        choices=(*CONTENDERS, *PACKAGES),
        help='these and no others (default: all that are installed)',
    )
    parser.add_argument(
        '--json',
        type=Path,
        default=DEFAULT_FOLDER / 'survival.json',
        help='where to write the figures (default: %(default)s)',
    )
    return parser.parse_args(argv)


def choose_contenders(
    asked: Sequence[str] | None,
) -> tuple[list[str], dict[str, str]]:
    """Who takes part, and the versions of the other trainers."""
    versions, missing = find_peers()
    for name, reason in missing.items():
        if asked is None or name in asked:
            print(f'{name}: left out, {reason}')
    for name, version in versions.items():
        print(f'{name}: {version}')
    there = (*CONTENDERS, *versions)
    wanted = there if asked is None else asked
    return [name for name in wanted if name in there], versions


def main() -> None:
    args = parse_args()
    torch.set_num_threads(1)
    iterations = 40 if args.quick else args.iterations
    names = QUICK if args.quick else tuple(FAULTS)
    for fact, value in machine_facts().items():
        print(f'{fact}: {value}')
    contenders, versions = choose_contenders(args.contenders)
    print(f'\n{align(_HEADER)}  what the owner is told')
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for seed in range(args.seed, args.seed + args.seeds):
            cases = plan_cases(names, iterations, seed)
            if args.only:
                cases = choose_cases(cases, args.only)
            place = Path(folder)
            rows += measure(cases, iterations, place, contenders, seed)
    if args.seeds > 1:
        print('\nall seeds')
        for line in summarise(rows):
            print(line)
    for contender in contenders:
        own = [row for row in rows if row['contender'] == contender]
        count = sum(row['survives'] for row in own)
        print(f'{contender} survives {count} of {len(own)}')
    args.json.parent.mkdir(parents=True, exist_ok=True)
    content = {
        'machine': machine_facts(),
        'iterations': iterations,
        'seed': args.seed,
        'peers': versions,
        'rows': rows,
    }
    args.json.write_text(json.dumps(content, indent=2) + '\n', 'utf-8')
    print(f'written to {args.json}')


if __name__ == '__main__':
    main()
