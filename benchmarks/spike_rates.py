"""False alarms and catches of the spike detector on healthy series.

A false alarm is a number of a healthy series that is called a spike. To see
what is caught, the same series are fed with a number that is a thousand times
the median of the last 100 that are not zero in 1 of 200 places.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

from mmengine.config import Config
from results import DEFAULT_FOLDER, Row, format_table, write_json
from spike_series import SERIES

from mmstable import config_path
from mmstable.numerics.sorted_window import SortedWindow
from mmstable.numerics.spike import SpikeDetector

FOLD = 1000
SPIKE_SHARE = 1 / 200
# The most percent of healthy numbers that may be called spikes.
LIMITS = {'default': 0.01, 'ultra_safe': 0.1}


def settings_of(preset: str) -> dict[str, Any]:
    """The settings of the detector in a base config."""
    path = config_path(f'_base_/stability/{preset}.py')
    return dict(Config.fromfile(path).stability.guard.get('spike', {}))


def false_alarms(
    values: Iterable[float], settings: Mapping[str, Any]
) -> float:
    """How many percent of the numbers are called spikes."""
    detector = SpikeDetector(**settings)
    return 100 * mean(map(detector.observe, values))


def missed_spikes(
    values: Iterable[float], settings: Mapping[str, Any], draw: Random
) -> tuple[int, int]:
    """How many spikes are not found, and how many there are."""
    detector = SpikeDetector(**settings)
    recent = SortedWindow(100)
    missed = total = 0
    for value in values:
        detector.observe(value)
        if value:
            recent.append(value)
        # By then every preset is past its warm-up.
        if len(recent) == recent.maxlen and draw.random() < SPIKE_SHARE:
            total += 1
            spike = FOLD * abs(recent.quantile(0.5))
            missed += not detector.observe(spike)
    return missed, total


def measure(preset: str, name: str, count: int, seeds: int) -> list[Row]:
    """The two rows of a series."""
    settings, series = settings_of(preset), SERIES[name]
    alarms, missed, total = [], 0, 0
    for seed in range(seeds):
        values = list(series(Random(seed), count))
        alarms.append(false_alarms(values, settings))
        found = missed_spikes(values, settings, Random(seed))
        missed, total = missed + found[0], total + found[1]
    case = f'{name}, {preset}'
    return [
        Row(case, 'false alarms, %', mean(alarms), LIMITS[preset]),
        Row(case, 'spikes missed', missed, 0, note=f'of {total}'),
    ]


def main() -> None:
    """Print the table and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--count', type=int, default=100_000)
    parser.add_argument('--seeds', type=int, default=1)
    parser.add_argument(
        '--json', type=Path, default=DEFAULT_FOLDER / 'spike_rates.json'
    )
    args = parser.parse_args()
    rows = [
        row
        for preset in LIMITS
        for name in SERIES
        for row in measure(preset, name, args.count, args.seeds)
    ]
    print(format_table(rows))
    write_json(args.json, rows, {})


if __name__ == '__main__':
    main()
