"""What HeadroomHook costs in a healthy run of the quick start.

Two trainings take turns, iteration by iteration: one looks at every
iteration, the other never does. The cost at an interval follows from the
cost of the one iteration that is looked at; the others do nothing.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from hook_overhead import ready_runner
from interleaved import Contender, Race, race
from results import DEFAULT_FOLDER, Row, publish

INTERVAL = 200
LIMIT = 1.01


def hooks(interval: int) -> list[dict]:
    return [dict(type='mmstable.HeadroomHook', interval=interval)]


def race_samples(rounds: int) -> Race:
    """Let iterations with and without a sample take turns."""
    with tempfile.TemporaryDirectory() as folder:
        runners = {
            'sampled': ready_runner(folder, 'sampled', hooks(1)),
            'not sampled': ready_runner(folder, 'quiet', hooks(10**9)),
            'no hook': ready_runner(folder, 'without', []),
        }
        batch = next(iter(runners['no hook'].train_dataloader))
        return race(
            [
                Contender(name, lambda r=r: r.train_loop.run_iter(batch))
                for name, r in runners.items()
            ],
            rounds,
        )


def rows_of(one: Race) -> list[Row]:
    sampled = one.ratio('sampled', 'not sampled')
    case = 'quick start, fp16'
    note = (
        f'{1e3 * one.median("sampled"):.2f} ms / '
        f'{1e3 * one.median("not sampled"):.2f} ms'
    )
    return [
        Row(
            case=case,
            what=f'a run with a sample every {INTERVAL} / none',
            value=1 + (sampled - 1) / INTERVAL,
            limit=LIMIT,
            noise=one.noise,
            note=note,
        ),
        Row(case=case, what='sampled / not sampled', value=sampled, note=note),
        Row(
            case=case,
            what='not sampled / no hook',
            value=one.ratio('not sampled', 'no hook'),
            best=one.best_ratio('not sampled', 'no hook'),
            noise=one.noise,
        ),
    ]


def main() -> None:
    """Print the table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--quick', action='store_true', help='does it run?')
    parser.add_argument(
        '--json', type=Path, default=DEFAULT_FOLDER / 'headroom_cost.json'
    )
    args = parser.parse_args()
    torch.set_num_threads(2)
    result = race_samples(3 if args.quick else 101)
    rows = rows_of(result)
    publish(args.json, rows, {'samples': result.as_dict()})


if __name__ == '__main__':
    main()
