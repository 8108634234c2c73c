"""What does an iteration cost a GPU, in launches, waits and pinned bytes?

Counts on the simulated device of ``tests/device``, side by side with stock
mmengine: a net with as many BatchNorms as ResNet-50. Below that, the cost of
snapshots for larger models, computed from their size.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from results import DEFAULT_FOLDER, Row, format_table, write_json

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.device.build import build, why_not  # noqa: E402
from tests.device.runs import Server  # noqa: E402
from tests.device.test_device_costs import (  # noqa: E402
    COUNT,
    FP16,
    FUSED,
    NORMS,
)

CASES = {
    'fp32': ({}, 4),
    'fp16': (FP16, 4),
    'fused fp32': (FUSED, 8),
    'fused fp16': ({**FUSED, **FP16}, 4),
}
INTERVAL = 3
GUARD = dict(type='mmstable.DivergenceGuardHook', snapshot_interval=INTERVAL)
KINDS = {'kernels': 'launches', 'syncs': 'host waits'}
# Bytes a second from a GPU to pinned memory, over PCI Express 3.0 x16.
PCIE = 12e9
# Weights and the two moments of AdamW, in float32.
BYTES = 3 * 4
# What snapshots may take of the time, and iterations between two of them.
SHARE, SHORTEST, LONGEST = 0.005, 10, 1000


class Model(NamedTuple):
    """A model whose snapshots are computed.

    Args:
        name: Its name.
        parameters: How many it has.
        iteration_s: Seconds of an iteration that are assumed.
    """

    name: str
    parameters: float
    iteration_s: float


MODELS = [
    Model('ViT-B', 86e6, 0.15),
    Model('ViT-L', 304e6, 0.4),
    Model('1B', 1e9, 1.0),
]


def measure(server: Server, folder: Path) -> list[Row]:
    """Count the work of an iteration, for each case."""
    rows = []
    for name, (settings, limit) in CASES.items():
        changes = dict(NORMS, train_cfg__max_iters=19, **settings)
        place = folder / name.replace(' ', '_')
        stock = server.train_stock(place / 's', hooks=[COUNT], **changes)
        safe = server.train(place / 'm', hooks=[COUNT], **changes)
        often = server.train(place / 'o', hooks=[COUNT, GUARD], **changes)
        counts = [one.counts() for one in (stock, safe, often)]
        for (kind, what), most in zip(KINDS.items(), (limit, 0)):
            each = [one[kind] / one['iterations'] for one in counts]
            note = f'{each[0]:.1f} stock, {each[1]:.1f} mmstable'
            more = each[1] - each[0]
            rows.append(Row(name, f'{what} more', more, most, note=note))
            snapshot = INTERVAL * (each[2] - each[1])
            rows.append(Row(name, f'{what} of a snapshot', snapshot))
        races = sum(one['races'] for one in counts)
        rows.append(Row(name, 'races', races, 0))
        rows.append(Row(name, 'pinned KiB', counts[1]['pinned'] / 1024))
    return rows


def snapshots() -> list[Row]:
    """Compute what snapshots of large models take and cost."""
    rows = []
    for model in MODELS:
        size = model.parameters * BYTES
        copy_s = size / PCIE
        interval = copy_s / (SHARE * model.iteration_s)
        interval = min(max(interval, SHORTEST), LONGEST)
        share = copy_s / (interval * model.iteration_s)
        note = (
            f'{size / 2**30:.1f} GiB each, copied in {1000 * copy_s:.0f} ms, '
            f'every {interval:.0f} iterations of {model.iteration_s:g} s'
        )
        rows.append(Row(model.name, 'share of time', share, SHARE, note=note))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--json', type=Path, default=DEFAULT_FOLDER / 'device_counts.json'
    )
    args = parser.parse_args()
    rows, reason = snapshots(), why_not()
    if reason is None:
        build()
        server = Server('cuda')
        with tempfile.TemporaryDirectory() as folder:
            rows = [*measure(server, Path(folder)), *rows]
        server.close()
    else:
        print(f'not counted: {reason}', file=sys.stderr)
    print(format_table(rows))
    write_json(args.json, rows, {})


if __name__ == '__main__':
    main()
