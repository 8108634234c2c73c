"""What it costs a healthy run to be ready for a lack of memory.

Trainings of the quick start take turns, iteration by iteration: with
MemoryGuardHook, whose thread looks at nothing meanwhile; without it; and
without the readiness of the train loop to do a step again, too. Then a
reading of the process tree, with two workers in it, is timed by the CPU time
that it takes, and so is the judgement of it. The cost at the default interval
follows.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Callable

import torch
from hook_overhead import ready_runner
from interleaved import Contender, Race, race
from results import DEFAULT_FOLDER, Row, publish
from torch.utils.data import DataLoader

from mmstable.memory.host import read_tree
from mmstable.memory.leaks import LeakDetector

INTERVAL = 30.0
WORKERS = 2
LIMIT = 1.005


def race_runs(rounds: int) -> Race:
    """Let iterations with and without the hook take turns."""
    guard = dict(type='mmstable.MemoryGuardHook', interval=1e6)
    with tempfile.TemporaryDirectory() as folder:
        runners = {
            'guarded': ready_runner(folder, 'guarded', [guard]),
            'not guarded': ready_runner(folder, 'plain', []),
            'not ready': ready_runner(
                folder, 'not ready', [], oom=dict(enabled=False)
            ),
        }
        batch = next(iter(runners['not guarded'].train_dataloader))
        return race(
            [
                Contender(name, lambda r=r: r.train_loop.run_iter(batch))
                for name, r in runners.items()
            ],
            rounds,
            clock=time.process_time,
        )


def cpu_seconds(action: Callable[[], object], rounds: int) -> float:
    """Median CPU seconds of this thread."""
    times = []
    for _ in range(rounds):
        start = time.thread_time()
        action()
        times.append(time.thread_time() - start)
    return statistics.median(times)


def time_a_look(rounds: int) -> tuple[float, float]:
    """CPU seconds of a reading with workers, and of its judgement."""
    loader = DataLoader(list(range(64)), num_workers=WORKERS)
    batches = iter(loader)
    next(batches)
    look = cpu_seconds(read_tree, rounds)
    detector, reading = LeakDetector(10**6), read_tree()
    numbers = iter(range(10**6))

    def judge() -> None:
        number = next(numbers)
        for forecast in detector.add(number, reading):
            detector.is_new(forecast, number)
            detector.becomes_critical(forecast, number)

    for _ in range(60):
        judge()
    return look, cpu_seconds(judge, rounds)


def compared(result: Race, what: str, name: str, other: str) -> Row:
    """A row about two of the trainings."""
    return Row(
        case='quick start, fp16',
        what=what,
        value=result.ratio(name, other),
        limit=LIMIT,
        best=result.best_ratio(name, other),
        noise=result.noise,
        note=f'{1e3 * result.median(name):.2f} ms / '
        f'{1e3 * result.median(other):.2f} ms',
    )


def main() -> None:
    """Print the table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--quick', action='store_true', help='does it run?')
    parser.add_argument(
        '--json', type=Path, default=DEFAULT_FOLDER / 'memory_guard_cost.json'
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    result = race_runs(3 if args.quick else 101)
    look, judge = time_a_look(3 if args.quick else 51)
    rows = [
        compared(
            result,
            'an iteration without a look, guarded / not',
            'guarded',
            'not guarded',
        ),
        compared(
            result,
            'an iteration, ready to do it again / not',
            'not guarded',
            'not ready',
        ),
        Row(
            case=f'{WORKERS} workers',
            what=f'1 + CPU time of a look every {INTERVAL:.0f} s',
            value=1 + (look + judge) / INTERVAL,
            limit=LIMIT,
            note=f'{1e3 * look:.1f} ms reading, {1e3 * judge:.1f} ms judging',
        ),
    ]
    publish(args.json, rows, {'iterations': result.as_dict()})


if __name__ == '__main__':
    main()
