"""What a safe step costs, next to mmengine's and to the bare minimum."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from interleaved import Race
from iteration_cases import race_iterations
from results import DEFAULT_FOLDER, Row, publish
from step_cases import StepCase, equal_shapes
from vit_parameters import WIDTHS, vit_shapes

READ_PASSES = 1.3


@dataclass(frozen=True)
class Sizes:
    """How large and how long everything is.

    Args:
        models (tuple[str]): Names in ``vit_parameters.WIDTHS``.
        depth (int): Blocks of those models.
        rounds (int): Timed rounds of a race.
        tensors (tuple[int]): Lengths of parameter lists to compare.
        numel (int): Values in each of those lists.
        width (int): Width of the model that is trained.
        batch (int): Pictures in one of its iterations.
    """

    models: tuple[str, ...] = ('ViT-S', 'ViT-B')
    depth: int = 12
    rounds: int = 31
    tensors: tuple[int, ...] = (150, 600, 2400)
    numel: int = 22_000_000
    width: int = 192
    batch: int = 2


QUICK = Sizes(
    models=('ViT-Ti',),
    depth=1,
    rounds=3,
    tensors=(15, 60, 240),
    numel=240_000,
    width=64,
    batch=1,
)


@dataclass
class Report:
    """Rows and the races behind them."""

    rows: list[Row] = field(default_factory=list)
    races: dict[str, Any] = field(default_factory=dict)

    def add_race(self, case: str, result: Race) -> None:
        """Keep the times of a race."""
        self.races[case] = result.as_dict()

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Keep a row."""
        self.rows.append(Row(*args, **kwargs))


def measure_fused(report: Report, model: str, sizes: Sizes) -> None:
    name = f'{model}, fused AdamW'
    case = StepCase(vit_shapes(WIDTHS[model], sizes.depth), fused=True)
    result = case.race(
        ['safe', 'stock', 'stock + loop', 'bare', 'read'], sizes.rounds
    )
    report.add_race(name, result)
    for base, limit in (('stock', 0.75), ('stock + loop', 0.35)):
        _add_ratio(report, name, result, base, limit)
    _add_bare_minimum(report, name, result)
    for contender in ('safe', 'stock'):
        reads, allocations = case.counts(contender)
        most = 0 if contender == 'safe' else None
        report.add(name, f'{contender}: host reads', reads, most)
        report.add(
            name,
            f'{contender}: gradient-sized allocations',
            allocations,
            most,
        )


def measure_unfused(report: Report, model: str, sizes: Sizes) -> None:
    name = f'{model}, plain AdamW'
    case = StepCase(vit_shapes(WIDTHS[model], sizes.depth), fused=False)
    result = case.race(['safe', 'stock'], sizes.rounds)
    report.add_race(name, result)
    _add_ratio(report, name, result, 'stock', 0.97)


def measure_iterations(report: Report, sizes: Sizes) -> None:
    for precision, limit in (('fp32', 1.01), ('fp16', 1.0)):
        name = f'training iteration, {precision}'
        result = race_iterations(
            precision, sizes.width, sizes.batch, sizes.rounds
        )
        report.add_race(name, result)
        _add_ratio(report, name, result, 'stock', limit)


def measure_tensor_counts(report: Report, sizes: Sizes) -> None:
    times = []
    for tensors in sizes.tensors:
        name = f'{tensors} tensors, fused AdamW'
        case = StepCase(equal_shapes(tensors, sizes.numel), fused=True)
        result = case.race(['safe', 'stock'], sizes.rounds)
        report.add_race(name, result)
        _add_ratio(report, name, result, 'stock', None)
        times.append(result.median('safe'))
    spans = list(zip(sizes.tensors, times))
    for (few, short), (many, long) in zip(spans, spans[1:]):
        report.add(
            f'{few} to {many} tensors',
            'safe: microseconds for one tensor more',
            1e6 * (long - short) / (many - few),
        )


def _add_bare_minimum(report: Report, case: str, result: Race) -> None:
    names = ('safe', 'bare', 'read')
    safe, bare, read = map(result.median, names)
    best_safe, best_bare, best_read = map(result.best, names)
    report.add(
        case,
        f'safe / (bare + {READ_PASSES} read)',
        safe / (bare + READ_PASSES * read),
        1.0,
        best_safe / (best_bare + READ_PASSES * best_read),
        result.noise,
        f'{_ms(safe)} / ({_ms(bare)} + {READ_PASSES} x {_ms(read)})',
    )


def _add_ratio(
    report: Report, case: str, result: Race, base: str, limit: float | None
) -> None:
    report.add(
        case,
        f'safe / {base}',
        result.ratio('safe', base),
        limit,
        result.best_ratio('safe', base),
        result.noise,
        f'{_ms(result.median("safe"))} / {_ms(result.median(base))}',
    )


def _ms(seconds: float) -> str:
    return f'{1e3 * seconds:.2f} ms'


def measure(sizes: Sizes) -> Report:
    report = Report()
    for model in sizes.models:
        measure_fused(report, model, sizes)
        measure_unfused(report, model, sizes)
    measure_iterations(report, sizes)
    measure_tensor_counts(report, sizes)
    return report


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--quick', action='store_true', help='tiny sizes: does it run?'
    )
    parser.add_argument(
        '--threads', type=int, default=2, help='threads of torch (default: 2)'
    )
    parser.add_argument(
        '--json',
        type=Path,
        default=DEFAULT_FOLDER / 'step_overhead.json',
        help='where to write the figures (default: %(default)s)',
    )
    return parser.parse_args(argv)


def main() -> None:
    args = parse_args()
    torch.set_num_threads(args.threads)
    report = measure(QUICK if args.quick else Sizes())
    publish(args.json, report.rows, report.races)


if __name__ == '__main__':
    main()
