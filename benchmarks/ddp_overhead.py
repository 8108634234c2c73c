"""What the safe wrappers cost in data-parallel training.

Two processes, joined by gloo, train a vision transformer in turns with
mmengine's wrapper and with that of mmstable, iteration by iteration. Every
rank draws the same order, so that all of them are in the same collective.
The times are those of rank 0.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import socket
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch
from hook_overhead import _row
from interleaved import Contender, Race, race
from iteration_cases import WRAPPERS, SmallViT
from mmengine.model import MMDistributedDataParallel
from results import DEFAULT_FOLDER, publish
from step_cases import CLIP
from torch import multiprocessing
from torch.optim import AdamW

LIMIT = 1.02
# The time of the CPU says more than that of the wall where other processes
# want the same two cores.
CASES = {
    'fp32': time.perf_counter,
    'fp32, CPU time': time.process_time,
}


def contender(name: str, precision: str, model: SmallViT) -> Contender:
    """One wrapper with a model of its own.

    Args:
        name (str): 'stock'; 'safe'; or 'safe, unnamed', without the look at
            each rank's own gradients.
        precision (str): 'fp32' or 'fp16'.
        model (SmallViT): What to train a copy of.
    """
    ddp = MMDistributedDataParallel(copy.deepcopy(model))
    options = dict(name_ranks=False) if name == 'safe, unnamed' else {}
    wrapper = WRAPPERS[precision][name.split(',', maxsplit=1)[0]](
        optimizer=AdamW(ddp.parameters(), lr=1e-4, fused=True),
        clip_grad=CLIP,
        **options,
    )
    wrapper.initialize_count_status(ddp, 0, 10**6)
    generator = torch.Generator().manual_seed(torch.distributed.get_rank())
    data = dict(
        inputs=torch.randn(16, 3, 32, 32, generator=generator),
        labels=torch.randint(100, (16,), generator=generator),
    )

    def iteration() -> None:
        losses = ddp.train_step(data, optim_wrapper=wrapper)
        losses['loss'].item()

    # A barrier, so that nobody pays for the lateness of the last one.
    return Contender(name, iteration, torch.distributed.barrier)


def run_rank(rank: int, port: int, path: str, width: int, rounds: int) -> None:
    """Race on one of two ranks; the first writes down what it measured."""
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE='2',
        MASTER_ADDR='127.0.0.1',
        MASTER_PORT=str(port),
    )
    torch.set_num_threads(1)
    torch.distributed.init_process_group('gloo')
    torch.manual_seed(0)
    model = SmallViT(width)
    names = ['stock', 'safe', 'safe, unnamed']
    races = {}
    for case, clock in CASES.items():
        contenders = [contender(name, 'fp32', model) for name in names]
        # DDP arranges its buckets first.
        races[case] = race(contenders, rounds, 4, clock=clock)
    if rank == 0:
        facts = {case: asdict(one) for case, one in races.items()}
        Path(path).write_text(json.dumps(facts), encoding='utf-8')
    torch.distributed.barrier()


def race_ranks(width: int, rounds: int) -> dict[str, Race]:
    """Race on two processes."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        path = f'{folder}/races'
        multiprocessing.spawn(run_rank, (port, path, width, rounds), nprocs=2)
        facts = json.loads(Path(path).read_text(encoding='utf-8'))
    return {case: Race(**one) for case, one in facts.items()}


def main() -> None:
    """Print the table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--quick', action='store_true', help='does it run?')
    parser.add_argument(
        '--json', type=Path, default=DEFAULT_FOLDER / 'ddp_overhead.json'
    )
    args = parser.parse_args()
    races = race_ranks(64 if args.quick else 192, 3 if args.quick else 30)
    rows = [
        _row(f'2 ranks, {case}', one, name, 'stock', LIMIT)
        for case, one in races.items()
        for name in ('safe', 'safe, unnamed')
    ]
    figures = {name: one.as_dict() for name, one in races.items()}
    publish(args.json, rows, figures)


if __name__ == '__main__':
    main()
