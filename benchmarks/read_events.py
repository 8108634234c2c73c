"""Reading a long event file: how fast, and in how much memory."""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

from mmstable.events import Culprit
from mmstable.events.codec import encode
from mmstable.report import StepFault, read_events

HEADER = Path(__file__).parents[1] / 'docs/en/event_file.md'


def write(path: Path, events: int) -> None:
    """A file with the documented header and so many bad steps."""
    header = next(
        line
        for line in HEADER.read_text(encoding='utf-8').splitlines()
        if line.startswith('{"event":"run_start"')
    )
    with path.open('wb') as file:
        file.write(header.encode() + b'\n')
        for iteration in range(events):
            fault = StepFault(
                iteration=iteration,
                time=1.7e9 + iteration,
                wrapper='optim_wrapper',
                rank=0,
                outcome='skipped',
                fault='overflow',
                loss_scale=1024.0,
                next_loss_scale=512.0,
                culprits=(Culprit('backbone.layers.0.weight', 'Inf'),),
                dropped_micro_batches=0,
                losses={'loss': 0.5},
            )
            file.write(encode(fault).rstrip(b'\n') + b'\n')


def peak() -> int:
    """Largest resident memory so far, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Write, read, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--events', type=int, default=1_000_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'events.jsonl')
        write(path, args.events)
        size = path.stat().st_size >> 20
        before, start = peak(), time.perf_counter()
        count = sum(1 for _ in read_events(path))
        seconds = time.perf_counter() - start
    print(
        f'{count} events, {size} MiB: read in {seconds:.1f} s, peak memory '
        f'grew by {peak() - before} KiB'
    )


if __name__ == '__main__':
    main()
