"""What does it cost to load a checkpoint as data only?

``load_file`` (our own reader, which trusts nothing in the file) against
``torch.load(weights_only=True, mmap=False)`` of the same file, which compares
no check sums: with those inside the file, without any, and with the SHA-256 of
all that is read.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from interleaved import Contender, race
from results import DEFAULT_FOLDER, Row, publish
from vit_parameters import WIDTHS, vit_shapes

from mmstable.checkpoint.loading import load_file, read_content

LIMIT = 1.10


def write_checkpoint(path: Path, size: int) -> None:
    """Save weights with the shapes of a ViT-B, again and again up to a size.

    Args:
        path (Path): The file.
        size (int): Bytes of all weights, at least.
    """
    weights: dict[str, torch.Tensor] = {}
    written = 0
    for shape in itertools.cycle(vit_shapes(WIDTHS['ViT-B'])):
        if written >= size:
            break
        weights[f'weight_{len(weights)}'] = weight = torch.randn(shape)
        written += weight.nbytes
    torch.save(dict(state_dict=weights, meta=dict(iter=1, epoch=0)), path)


def measure(
    size: int, rounds: int, folder: Path, cpu: bool = False
) -> tuple[list[Row], dict[str, object]]:
    path = folder / 'iter_1.pth'
    write_checkpoint(path, size)
    with path.open('rb') as file:
        digest = hashlib.sha256()
        for piece in iter(lambda: file.read(1 << 22), b''):
            digest.update(piece)
    result = race(
        [
            Contender('safe', lambda: load_file(path)),
            Contender('without check sums', lambda: read_content(path)),
            Contender(
                'with digest',
                lambda: load_file(path, sha256=digest.hexdigest()),
            ),
            Contender(
                'torch',
                lambda: torch.load(path, weights_only=True, mmap=False),
            ),
        ],
        rounds,
        warmup=1,
        clock=time.process_time if cpu else time.perf_counter,
    )
    case = f'loading {path.stat().st_size >> 20} MiB'
    rows = [
        Row(
            case,
            f'{"CPU " if cpu else ""}time, {name} / torch.load',
            result.ratio(name, 'torch'),
            limit,
            result.best_ratio(name, 'torch'),
            result.noise,
            f'{result.median(name):.3f} s / {result.median("torch"):.3f} s',
        )
        for name, limit in (
            ('safe', LIMIT),
            ('without check sums', LIMIT),
            ('with digest', None),
        )
    ]
    return rows, {case: result.as_dict()}


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--quick', action='store_true', help='tiny sizes: does it run?'
    )
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument(
        '--cpu',
        action='store_true',
        help='CPU time of all threads, for a machine that others load, too',
    )
    parser.add_argument(
        '--threads', type=int, default=2, help='threads of torch (default: 2)'
    )
    parser.add_argument(
        '--folder', type=Path, help='where to save (default: a temporary one)'
    )
    parser.add_argument(
        '--json', type=Path, default=DEFAULT_FOLDER / 'load_cost.json'
    )
    return parser.parse_args(argv)


def main() -> None:
    args = parse_args()
    torch.set_num_threads(args.threads)
    size, rounds = (8 << 20, 2) if args.quick else (1 << 30, args.rounds)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        rows, races = measure(size, rounds, Path(folder), args.cpu)
    publish(args.json, rows, races)


if __name__ == '__main__':
    main()
