"""What the guard does to healthy and to sick runs.

First, how many numbers of healthy series are held and repeated: series are
data, so every repeated step would be the same, and none is skipped. Then the
protocols of ``protocols.py``, each with stock mmengine and with mmstable: held
steps, transient verdicts, and of these the false ones, which are those of
healthy runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

from odd_protocols import ODD, ODD_SICK
from protocols import (
    HEALTHY,
    SICK,
    Protocol,
    Result,
    is_equal,
    is_healthy,
    random_healthy,
    rounding_of,
    run_protected,
    run_stock,
)
from results import DEFAULT_FOLDER, Row, format_table, write_json
from spike_series import FAR_REACHING, SERIES

from mmstable.optim.pending_step import Peak

# The most percent of steps that may be repeated.
MOST_ASKED = 1.0


def held(values: Iterable[float]) -> int:
    """How many numbers of a series are held."""
    peak, found = Peak(), 0
    for value in values:
        found += value > peak.limit
        peak.observe(value)
    return found


def measure_series(name: str, count: int, seeds: int) -> Row:
    """The percent of the numbers of a series that are held."""
    series = {**SERIES, **FAR_REACHING}[name]
    found = sum(held(series(Random(seed), count)) for seed in range(seeds))
    share = 100 * found / (count * seeds)
    return Row(name, '% held', share, MOST_ASKED, note=f'{found} of all')


def verdicts(result: Result) -> str:
    """The verdicts on held steps, as text."""
    found = result.count('held_step', 'verdict')
    return ', '.join(f'{name} {count}' for name, count in found.items())


def measure_healthy(name: str, protocol: Protocol) -> Iterator[Row]:
    """Whether a healthy run is the stock run, and its false verdicts."""
    stock, ours = run_stock(protocol), run_protected(protocol)
    if not is_healthy(stock):
        yield Row(name, 'not healthy', 1.0)
        return
    same = is_equal(stock, ours, rounding_of(protocol))
    differs = float(not same)
    yield Row(name, 'differs from stock', differs, 0.0, note=verdicts(ours))
    false = ours.count('held_step', 'verdict')['transient']
    yield Row(name, 'false verdicts', float(false), 0.0)


def measure_sick(name: str, protocol: Protocol) -> Iterator[Row]:
    """How a sick run ends: as well as without the fault, or stopped."""
    stock, ours = run_stock(protocol), run_protected(protocol)
    skipped = sum(ours.count('step_fault', 'outcome').values())
    rollbacks = ours.count('intervention', 'action')['rollback']
    ends = 'stopped' if ours.error else f'loss {ours.end:.3g}'
    note = (
        f'stock ends with {stock.losses[-1]:.3g}; {ends}, {skipped} skipped, '
        f'{rollbacks} rollbacks; {verdicts(ours)}'
    )
    is_lost = not ours.error and not ours.end <= 1e3 * abs(ours.losses[0])
    yield Row(name, 'lost', float(is_lost), 0.0, note=note)


def main() -> None:
    """Print the tables, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--count', type=int, default=100_000)
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument('--random', type=int, default=0)
    parser.add_argument('--no-runs', action='store_true')
    parser.add_argument(
        '--json', type=Path, default=DEFAULT_FOLDER / 'guard_rates.json'
    )
    args = parser.parse_args()
    rows = [
        measure_series(name, args.count, args.seeds)
        for name in {**SERIES, **FAR_REACHING}
    ]
    if not args.no_runs:
        for name, protocol in {**HEALTHY, **ODD}.items():
            rows += measure_healthy(name, protocol)
        for name, protocol in {**SICK, **ODD_SICK}.items():
            rows += measure_sick(name, protocol)
    for seed in range(args.random):
        rows += measure_healthy(f'random {seed}', random_healthy(seed))
    print(format_table(rows))
    write_json(args.json, rows, {})


if __name__ == '__main__':
    main()
