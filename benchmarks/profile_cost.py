"""What IterProfileHook costs in a healthy run of the quick start.

Trainings take turns, ten iterations each: one that is measured all the time,
one with the hook that measures nothing, one without the hook. The cost at
the default interval follows from the iterations that are measured. On a busy
machine, `--cpu-time` tells more than the time of the wall.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

import torch
from hook_overhead import ready_runner
from interleaved import Contender, Race, race
from mmengine.runner import Runner
from results import DEFAULT_FOLDER, Row, publish

from mmstable.profile.measure import IterationSample

# The defaults of the hook.
INTERVAL, SAMPLE, DEPTH = 500, 10, 2
LIMIT = 1.01
MEASURED, QUIET, WITHOUT = 'measured', 'not measured', 'no hook'
# One that all have, so that they differ in nothing else.
OTHER = dict(type='mmstable.EventLogHook')
# A sample that never comes.
NEVER = dict(type='mmstable.IterProfileHook', interval=10**9, begin=10**9)


def measure(runner: Runner, batch: Any) -> None:
    """What the hook does for one sample."""
    sample = IterationSample(runner, None, DEPTH)
    for _ in range(SAMPLE):
        runner.train_loop.run_iter(batch)
        sample.mark()
    sample.stop()


def train(runner: Runner, batch: Any) -> None:
    """The same iterations."""
    for _ in range(SAMPLE):
        runner.train_loop.run_iter(batch)


def race_samples(rounds: int, clock: Callable[[], float]) -> Race:
    """Let samples and plain iterations take turns."""
    with tempfile.TemporaryDirectory() as folder:
        runners = {
            MEASURED: (
                ready_runner(folder, 'measured', [OTHER, NEVER]),
                measure,
            ),
            QUIET: (ready_runner(folder, 'quiet', [OTHER, NEVER]), train),
            WITHOUT: (ready_runner(folder, 'without', [OTHER]), train),
        }
        batch = next(iter(runners[WITHOUT][0].train_dataloader))
        return race(
            [
                Contender(name, lambda r=r, run=run: run(r, batch))
                for name, (r, run) in runners.items()
            ],
            rounds,
            warmup=1,
            clock=clock,
        )


def rows_of(one: Race) -> list[Row]:
    measured = one.ratio(MEASURED, QUIET)
    case = 'quick start, fp16'
    note = (
        f'{1e3 * one.median(MEASURED) / SAMPLE:.2f} ms / '
        f'{1e3 * one.median(QUIET) / SAMPLE:.2f} ms'
    )
    return [
        Row(
            case=case,
            what=f'a run with {SAMPLE} of {INTERVAL} measured / none',
            value=1 + (measured - 1) * SAMPLE / INTERVAL,
            limit=LIMIT,
            noise=one.noise,
            note=note,
        ),
        Row(
            case=case,
            what='measured / not measured',
            value=measured,
            best=one.best_ratio(MEASURED, QUIET),
            note=note,
        ),
        Row(
            case=case,
            what='not measured / no hook',
            value=one.ratio(QUIET, WITHOUT),
            best=one.best_ratio(QUIET, WITHOUT),
            noise=one.noise,
        ),
    ]


def main() -> None:
    """Print the table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--quick', action='store_true', help='does it run?')
    parser.add_argument(
        '--json', type=Path, default=DEFAULT_FOLDER / 'profile_cost.json'
    )
    parser.add_argument('--cpu-time', action='store_true')
    parser.add_argument('--threads', type=int, default=2, help='of torch')
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.cpu_time else time.perf_counter
    result = race_samples(3 if args.quick else 21, clock)
    rows = rows_of(result)
    publish(args.json, rows, {'samples': result.as_dict()})


if __name__ == '__main__':
    main()
