"""How long does it take to skip the data of past iterations?

``SafeIterBasedTrainLoop`` moves the sampler. ``IterBasedTrainLoop`` of
mmengine reads all past batches again; that is measured on a few and
extrapolated.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler
from results import DEFAULT_FOLDER, Row, publish
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from mmstable.state.data_position import (
    DataPosition,
    EndlessBatches,
    iterate_from,
    position_of_iteration,
)

LIMIT_SECONDS = 2.0
_BATCH_SIZE = 16
_SAMPLES = 100_000


class Pictures(Dataset):
    """Pictures that cost no more than to be scaled: a kind comparison."""

    def __init__(self) -> None:
        self._picture = torch.randint(256, (3, 224, 224), dtype=torch.uint8)

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        return self._picture.float().sub_(114).div_(58)


def build_loader(kind: type, ranks: int, workers: int) -> DataLoader:
    dataset = Pictures()
    sampler = kind(dataset, seed=0)
    # As on the last of so many ranks.
    sampler.rank, sampler.world_size = ranks - 1, ranks
    return DataLoader(
        dataset,
        batch_size=_BATCH_SIZE,
        sampler=sampler,
        num_workers=workers,
    )


def seconds_to_move(loader: DataLoader, iterations: int) -> float:
    """Until the first batch after a resume is there."""
    start = time.perf_counter()
    position = position_of_iteration(loader, iterations)
    next(EndlessBatches(loader, partial(iterate_from, loader), position))
    return time.perf_counter() - start


def seconds_to_replay(
    loader: DataLoader, iterations: int, measured: int
) -> float:
    """The same by reading, from the time that some batches take."""
    batches = EndlessBatches(loader, lambda _: iter(loader), DataPosition())
    next(batches)
    start = time.perf_counter()
    for _ in islice(batches, measured):
        pass
    return (time.perf_counter() - start) * iterations / measured


def measure(iterations: int, measured: int) -> list[Row]:
    what = f'skip {iterations:,} x {_BATCH_SIZE}: seconds'
    rows = []
    for kind, ranks, workers in (
        (InfiniteSampler, 1, 0),
        (InfiniteSampler, 1, 2),
        (InfiniteSampler, 8, 0),
        (DefaultSampler, 1, 0),
        (DefaultSampler, 1, 2),
    ):
        case = f'{kind.__name__}, {ranks} rank(s), {workers} workers'
        moved = seconds_to_move(build_loader(kind, ranks, workers), iterations)
        rows.append(Row(case, f'safe: {what}', moved, LIMIT_SECONDS))
    for workers in (0, 2):
        loader = build_loader(InfiniteSampler, 1, workers)
        replayed = seconds_to_replay(loader, iterations, measured)
        rows.append(
            Row(
                f'InfiniteSampler, 1 rank(s), {workers} workers',
                f'mmengine: {what}',
                replayed,
                note=f'extrapolated from {measured} batches',
            )
        )
    return rows


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--quick', action='store_true', help='few batches: does it run?'
    )
    parser.add_argument(
        '--json',
        type=Path,
        default=DEFAULT_FOLDER / 'resume_skip.json',
        help='where to write the figures (default: %(default)s)',
    )
    return parser.parse_args(argv)


def main() -> None:
    args = parse_args()
    torch.set_num_threads(1)
    rows = measure(*((200, 3) if args.quick else (200_000, 200)))
    publish(args.json, rows, {})


if __name__ == '__main__':
    main()
