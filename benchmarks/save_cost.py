"""What does it cost to save a checkpoint safely?

``SafeCheckpointHook`` (audit, SHA-256, fsync, read back, rename, side file)
against mmengine's ``CheckpointHook``, on the same model and the same disk:
the time that training waits, with ``async_save``, with a snapshot that the
guard has taken of the same iteration, and without either, and the time until
the file is complete. ``torch.distributed.checkpoint.async_save`` is
measured beside it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed.checkpoint as dcp
from interleaved import Contender, race
from mmengine.config import Config
from mmengine.hooks import CheckpointHook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from results import DEFAULT_FOLDER, Row, publish
from torch import Tensor, nn
from vit_parameters import WIDTHS, vit_shapes

from mmstable.checkpoint.folders import finish_saves
from mmstable.hooks import SafeCheckpointHook
from mmstable.state.run_state import RunState

LIMIT = 1.10
# Copying alone takes 0.18 to 0.22 of mmengine's time on two cores.
BLOCKING_LIMIT = 0.25
# Nothing is copied: the guard has done it.
SHARED_LIMIT = 0.03
# Of the size of a checkpoint: buffers come and go, a copy would be 1.
MEMORY_LIMIT = 0.25


class VitSized(BaseModel):
    """As many parameters as a vision transformer, and hardly any work."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            nn.Parameter(0.02 * torch.randn(shape)) for shape in shapes
        )

    def forward(self, inputs: Tensor, mode: str = 'loss') -> dict:
        """All of them, so that each has a gradient."""
        return {'loss': sum(weight.mean() for weight in self.weights)}


class AsyncCheckpointHook(SafeCheckpointHook):
    """The hook as it is by default, under another name."""


def build_runner(model: str, folder: Path) -> Runner:
    """A runner after one step of AdamW, with a save hook of each kind."""
    runner = Runner(
        model=VitSized(vit_shapes(WIDTHS[model])),
        work_dir=str(folder),
        train_dataloader=dict(
            dataset=[torch.zeros(1)],
            batch_size=1,
            sampler=dict(type='InfiniteSampler'),
        ),
        train_cfg=dict(by_epoch=False, max_iters=1),
        optim_wrapper=dict(
            type='mmstable.SafeOptimWrapper',
            optimizer=dict(type='AdamW', lr=1e-4, fused=True),
        ),
        default_hooks=dict(checkpoint=None, logger=None),
        custom_hooks=[
            CheckpointHook(by_epoch=False, save_last=False, out_dir=None),
            SafeCheckpointHook(
                by_epoch=False, save_last=False, async_save=False
            ),
            AsyncCheckpointHook(by_epoch=False, save_last=False),
        ],
        default_scope='mmengine',
        log_level='ERROR',
        cfg=Config(),
        experiment_name=f'save_cost_{model}',
    )
    runner.train()
    return runner


def saver(runner: Runner, kind: type[CheckpointHook]) -> Callable[[], None]:
    (hook,) = [one for one in runner.hooks if type(one) is kind]
    hook.filename_tmpl = f'{kind.__name__}_{{}}.pth'

    def save() -> None:
        # The last iteration would be waited for.
        hook._save_checkpoint_with_step(runner, 1, dict(epoch=0, iter=0))

    return save


class SharedSaver:
    """Saves from the newest snapshot of the guard, which was not timed."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        (self._hook,) = [
            one for one in runner.hooks if type(one) is AsyncCheckpointHook
        ]
        self._snapshot = RunState(runner).capture()
        self._hook._share_snapshot = lambda *args: None
        self._save = saver(runner, AsyncCheckpointHook)

    def save(self) -> None:
        """Save as in the iteration of a snapshot."""
        share = self._hook._share_snapshot
        self._hook._share_snapshot = lambda *args: self._snapshot
        self._save()
        self._hook._share_snapshot = share


class DcpSaver:
    """Saves weights and optimizer by torch's own asynchronous way."""

    def __init__(self, runner: Runner, folder: Path) -> None:
        self._runner, self._folder = runner, folder
        self._future: Any = None

    def save(self) -> None:
        """Return as soon as torch has copied the state."""
        state = {
            'model': self._runner.model.state_dict(),
            'optimizer': self._runner.optim_wrapper.optimizer.state_dict(),
        }
        self._future = dcp.async_save(
            state, storage_writer=dcp.FileSystemWriter(self._folder)
        )

    def wait(self) -> None:
        """Wait for the file."""
        if self._future is not None:
            self._future.result()


def peak_growth(action: Callable[[], None]) -> int | None:
    """Bytes that an action needs for a while; None if Linux is elsewhere."""
    clear, status = Path('/proc/self/clear_refs'), Path('/proc/self/status')
    if not clear.exists():
        return None
    try:
        clear.write_text('5')
    except OSError:
        return None
    before = _memory(status, 'VmRSS')
    action()
    return _memory(status, 'VmHWM') - before


def _memory(status: Path, key: str) -> int:
    for line in status.read_text().splitlines():
        if line.startswith(f'{key}:'):
            return 1024 * int(line.split()[1])
    raise LookupError(key)


def measure(
    model: str, rounds: int, folder: Path
) -> tuple[list[Row], dict[str, object]]:
    runner = build_runner(model, folder)
    safe = saver(runner, SafeCheckpointHook)
    stock = saver(runner, CheckpointHook)
    background = saver(runner, AsyncCheckpointHook)
    shared = SharedSaver(runner)
    torch_way = DcpSaver(runner, folder / 'dcp')

    def finish() -> None:
        finish_saves(runner)
        torch_way.wait()

    def settle() -> None:
        finish()
        _settle()

    def whole() -> None:
        background()
        finish()

    contenders = {
        'safe': safe,
        'stock': stock,
        'async': background,
        'shared': shared.save,
        'async, until it is on disk': whole,
        'DCP async': torch_way.save,
    }
    result = race(
        [Contender(name, run, settle) for name, run in contenders.items()],
        rounds,
        warmup=1,
    )
    finish()
    size = Path(folder, 'SafeCheckpointHook_1.pth').stat().st_size
    case = f'{model} with AdamW, {size >> 20} MiB'
    note = f'{result.median("safe"):.3f} s / {result.median("stock"):.3f} s'
    rows = [
        Row(
            case,
            'time, safe / stock',
            result.ratio('safe', 'stock'),
            LIMIT,
            result.best_ratio('safe', 'stock'),
            result.noise,
            note,
        )
    ]
    for name, what, limit in (
        ('async', 'training waits, async / stock', BLOCKING_LIMIT),
        ('shared', 'training waits, with a snapshot / stock', SHARED_LIMIT),
        ('DCP async', 'training waits, DCP async / stock', None),
        ('async, until it is on disk', 'until on disk, async / stock', None),
    ):
        seconds = f'{result.median(name):.3f} s'
        rows.append(
            Row(
                case,
                what,
                result.ratio(name, 'stock'),
                # Less has a share of fixed costs.
                limit if size > 500 << 20 else None,
                result.best_ratio(name, 'stock'),
                result.noise,
                f'{seconds} / {result.median("stock"):.3f} s',
            )
        )
    for name, action, limit in (
        ('safe', safe, MEMORY_LIMIT),
        ('stock', stock, None),
    ):
        peak = peak_growth(action)
        if peak is not None:
            what = f'memory / file size, {name}'
            rows.append(Row(case, what, peak / size, limit))
    return rows, {case: result.as_dict()}


def _settle() -> None:
    """Let what others have written reach the disk."""
    os.sync()
    time.sleep(0.05)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--quick', action='store_true', help='tiny sizes: does it run?'
    )
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument(
        '--threads', type=int, default=2, help='threads of torch (default: 2)'
    )
    parser.add_argument(
        '--folder', type=Path, help='where to save (default: a temporary one)'
    )
    parser.add_argument(
        '--json', type=Path, default=DEFAULT_FOLDER / 'save_cost.json'
    )
    return parser.parse_args(argv)


def main() -> None:
    args = parse_args()
    torch.set_num_threads(args.threads)
    # DCP asks for a group, also of one process.
    torch.distributed.init_process_group(
        'gloo', store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    rows: list[Row] = []
    races: dict[str, object] = {}
    for model in ['ViT-Ti'] if args.quick else ['ViT-S', 'ViT-B']:
        rounds = 2 if args.quick else args.rounds
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            more_rows, more_races = measure(model, rounds, Path(folder))
        rows += more_rows
        races.update(more_races)
    publish(args.json, rows, races)


if __name__ == '__main__':
    main()
