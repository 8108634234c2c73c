"""False alarms and catches of the spike detector on healthy series.

A false alarm is a number of a healthy series that is called a spike. To see
what is caught, a number that is a thousand times the median of the last 100
that are not zero is held against the same series in 1 of 200 places: a single
spike, wherever it comes. If it is fed to the detector in all of these places,
it has to become known: what recurs belongs to the data.
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
from spike_series import FAR_REACHING, SERIES

from mmstable import config_path
from mmstable.numerics.sorted_window import SortedWindow
from mmstable.numerics.spike import SpikeDetector

FOLD = 1000
SPIKE_SHARE = 1 / 200
# The most percent of healthy numbers that may be called spikes.
LIMITS = {'default': 0.01, 'ultra_safe': 0.1}
# The most numbers of one kind that may be skipped before they are known.
MOST_SKIPPED = 20


def settings_of(preset: str) -> dict[str, Any]:
    """The settings of the detector in a base config."""
    path = config_path(f'_base_/stability/{preset}.py')
    return dict(Config.fromfile(path).stability.guard.get('spike', {}))


def false_alarms(values: Iterable[float], settings: Mapping[str, Any]) -> int:
    """How many of the numbers are called spikes."""
    detector = SpikeDetector(**settings)
    return sum(map(detector.observe, values))


def spiked(
    values: Iterable[float],
    settings: Mapping[str, Any],
    draw: Random,
    recurs: bool,
) -> list[bool]:
    """Which spikes are found.

    Args:
        values (Iterable[float]): The series.
        settings (Mapping): Of the detector.
        draw (Random): Says where they are.
        recurs (bool): Whether the detector remembers them.
    """
    detector = SpikeDetector(**settings)
    recent = SortedWindow(100)
    judge = detector.observe if recurs else detector.is_spike
    found = []
    for value in values:
        detector.observe(value)
        if value:
            recent.append(value)
        # By then every preset is past its warm-up.
        if len(recent) == recent.maxlen and draw.random() < SPIKE_SHARE:
            found.append(judge(FOLD * abs(recent.quantile(0.5))))
    return found


def measure(preset: str, name: str, count: int, seeds: int) -> list[Row]:
    """The rows of a series that spikes stand out of."""
    settings, case = settings_of(preset), f'{name}, {preset}'
    alarms, recurring = [], []
    single: list[bool] = []
    for seed in range(seeds):
        values = list(SERIES[name](Random(seed), count))
        alarms.append(false_alarms(values, settings))
        single += spiked(values, settings, Random(seed), recurs=False)
        found = spiked(values, settings, Random(seed), recurs=True)
        recurring.append(sum(found))
    rate, note = 100 * mean(alarms) / count, f'of {len(single)}'
    return [
        Row(case, 'false alarms, %', rate, LIMITS[preset]),
        Row(case, 'single spikes missed', single.count(False), 0, note=note),
        Row(case, 'skips until known', max(recurring), MOST_SKIPPED),
    ]


def measure_far(preset: str, name: str, count: int, seeds: int) -> list[Row]:
    """The row of a series that is known only after a while."""
    series, settings = FAR_REACHING[name], settings_of(preset)
    alarms = [
        false_alarms(series(Random(seed), count), settings)
        for seed in range(seeds)
    ]
    case = f'{name}, {preset}'
    return [Row(case, 'skips until known', max(alarms), MOST_SKIPPED)]


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
    rows += [
        row
        for preset in LIMITS
        for name in FAR_REACHING
        for row in measure_far(preset, name, args.count, args.seeds)
    ]
    print(format_table(rows))
    write_json(args.json, rows, {})


if __name__ == '__main__':
    main()
