"""What protection costs while nothing happens, and what going back costs.

Two trainings of the quick-start model take turns, iteration by iteration:
plain mmengine, and everything of mmstable on; in fp16, as it is shipped, and
in float32, where an iteration is much shorter. Then the copy of all
buffers of a ResNet-50 is compared with one of its training iterations, and
snapshot and rollback of a ViT-B with AdamW are timed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

import torch
from hook_overhead import CONFIG, start
from interleaved import Contender, Race, race
from mmengine.registry import OPTIM_WRAPPERS
from mmengine.runner import Runner
from resnet50 import ResNet50
from results import DEFAULT_FOLDER, Row, publish
from stock_wrappers import CpuAmpOptimWrapper
from torch.nn import Module, ParameterList
from vit_parameters import WIDTHS, GradedParameters, vit_shapes

from mmstable import SafeOptimWrapper
from mmstable.checkpoint.audit import find_poison
from mmstable.cli.config import load_config
from mmstable.optim.buffers import BufferProtection
from mmstable.state.data_position import DataPosition
from mmstable.state.rng import capture_rng
from mmstable.state.run_state import RunState

STOCK_HOOKS = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=250),
    sampler_seed=dict(type='DistSamplerSeedHook'),
)


STOCK_WRAPPERS = dict(
    fp32=dict(type='OptimWrapper'),
    fp16=dict(type='CpuAmpOptimWrapper', init_scale=1024.0),
)
OPTIM_WRAPPERS.register_module(module=CpuAmpOptimWrapper)


def quick_start(folder: str, name: str, is_safe: bool, dtype: str) -> Runner:
    """The quick start, with all of mmstable or none of it."""
    cfg = load_config(str(CONFIG))
    settings = dict(
        optimizer=cfg.optim_wrapper.optimizer,
        clip_grad=cfg.optim_wrapper.clip_grad,
    )
    if not is_safe:
        cfg.optim_wrapper = dict(STOCK_WRAPPERS[dtype], **settings)
        cfg.custom_hooks = []
        cfg.default_hooks = STOCK_HOOKS
        cfg.train_cfg.type = 'IterBasedTrainLoop'
    elif dtype == 'fp32':
        cfg.optim_wrapper = dict(type='mmstable.SafeOptimWrapper', **settings)
    runner = start(cfg, folder, name)
    if is_safe:
        # As almost always, not between two passes over the data, where the
        # loader's own generators are read, too.
        runner.train_loop._position = DataPosition(epoch=0, index=1)
        runner.train_loop._pass_rng = capture_rng()
    return runner


def race_runs(rounds: int, dtype: str) -> tuple[Race, float]:
    """Let the two trainings take turns; then seconds for a snapshot."""
    with tempfile.TemporaryDirectory() as folder:
        runners = {
            'all on': quick_start(folder, f'safe {dtype}', True, dtype),
            'mmengine': quick_start(folder, f'stock {dtype}', False, dtype),
        }
        batch = next(iter(runners['mmengine'].train_dataloader))
        result = race(
            [
                Contender(name, lambda r=r: r.train_loop.run_iter(batch))
                for name, r in runners.items()
            ],
            rounds,
        )
        return result, time_snapshot(runners['all on'], rounds)


def time_snapshot(runner: Any, rounds: int) -> float:
    """Seconds to look through the state of a run and to copy it."""
    state = RunState(runner)
    snapshot = state.capture()

    def take() -> None:
        find_poison(state.tensors())
        state.capture(snapshot)

    return median(take, rounds)


def share_of_buffers(rounds: int, size: int) -> tuple[float, float]:
    """Seconds for the copy of a ResNet-50's buffers, and for an iteration."""
    model = ResNet50()
    protection = BufferProtection(enabled=True, accumulates=False)
    protection.bind_model(model)
    wrapper = SafeOptimWrapper(
        torch.optim.SGD(model.parameters(), 0.01), protect_buffers=False
    )
    images = torch.randn(2, 3, size, size)

    def copy() -> None:
        protection.before_forward(None, is_used=False)
        protection.after_forward()
        protection.keep_step()

    def iterate() -> None:
        with wrapper.optim_context(model):
            loss = model(images).square().mean()
        wrapper.update_params(loss)

    return median(copy, 10 * rounds), median(iterate, rounds)


def median(action: Callable[[], object], rounds: int) -> float:
    """Median seconds, after one run that is not counted."""
    action()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


class Weights(Module):
    """A list of parameters as a model."""

    def __init__(self, params: list[Any]) -> None:
        super().__init__()
        self.params = ParameterList(params)


class SmallRunner:
    """As much of a runner as a snapshot looks at."""

    def __init__(self, size: str) -> None:
        data = GradedParameters(vit_shapes(WIDTHS[size]))
        self.model = Weights(data.params)
        optimizer = torch.optim.AdamW(data.params, lr=1e-6, fused=True)
        self.optim_wrapper = SafeOptimWrapper(optimizer)
        self.optim_wrapper.step()
        self.param_schedulers: list[Any] = []
        self.hooks: list[Any] = []


def time_going_back(size: str, rounds: int) -> tuple[float, float]:
    """Seconds for a snapshot, and for the rollback to it."""
    runner: Any = SmallRunner(size)
    state = RunState(runner)
    snapshot = state.capture()
    return (
        time_snapshot(runner, rounds),
        median(lambda: state.restore(snapshot), rounds),
    )


def main() -> None:
    """Print the table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--quick', action='store_true', help='does it run?')
    parser.add_argument(
        '--json', type=Path, default=DEFAULT_FOLDER / 'guard_cost.json'
    )
    args = parser.parse_args()
    torch.set_num_threads(2)
    runs, snapshot = race_runs(3 if args.quick else 301, 'fp32')
    half, _ = race_runs(3 if args.quick else 101, 'fp16')
    copy, iteration = share_of_buffers(*((2, 32) if args.quick else (15, 224)))
    size = 'ViT-Ti' if args.quick else 'ViT-B'
    taken, back = time_going_back(size, 2 if args.quick else 7)
    rows = [
        _compared('quick start, fp16 as it is', half),
        _compared('quick start, fp32', runs),
        Row(
            case='quick start, fp32',
            what='snapshot / iteration',
            value=snapshot / runs.median('all on'),
            limit=1.0,
            note=f'{1e3 * snapshot:.2f} ms',
        ),
        Row(
            case='ResNet-50, 2 images',
            what='1 + copy of buffers / iteration',
            value=1 + copy / iteration,
            limit=1.01,
            note=f'{1e3 * copy:.3f} ms / {1e3 * iteration:.1f} ms',
        ),
        Row(f'{size}, AdamW', 'snapshot, seconds', taken),
        Row(f'{size}, AdamW', 'rollback, seconds', back, 2.0),
    ]
    publish(args.json, rows, {'fp16': half.as_dict(), 'fp32': runs.as_dict()})


def _compared(case: str, runs: Race) -> Row:
    return Row(
        case=case,
        what='all on / mmengine',
        value=runs.ratio('all on', 'mmengine'),
        limit=1.02,
        best=runs.best_ratio('all on', 'mmengine'),
        noise=runs.noise,
        note=f'{1e3 * runs.median("all on"):.2f} ms / '
        f'{1e3 * runs.median("mmengine"):.2f} ms',
    )


if __name__ == '__main__':
    main()
