"""What the hooks of mmstable cost in a healthy run.

Two trainings of the quick-start model take turns, iteration by iteration:
one with mmengine's default hooks only, one with GradNanLoggerHook,
GradClipHook and EventLogHook added. Then the step of a ViT-S with its modules
clipped apart races the one with all gradients clipped together.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from interleaved import Contender, Race, race
from mmengine.config import Config
from mmengine.runner import Runner
from results import DEFAULT_FOLDER, Row, publish
from torch.nn import Module, ParameterList
from torch.optim import AdamW
from vit_parameters import WIDTHS, GradedParameters, vit_shapes

from mmstable import SafeAmpOptimWrapper
from mmstable.cli.config import load_config
from mmstable.optim.clipping import parse_clip

CONFIG = (
    Path(__file__).parents[1] / 'configs/quickstart/digit-scenes_fcn_fp16.py'
)
HOOKS = [
    dict(type='mmstable.GradNanLoggerHook'),
    dict(type='mmstable.GradClipHook', max_norm=35),
    dict(type='mmstable.EventLogHook'),
]


def ready_runner(
    folder: str, name: str, hooks: list[dict], **loop: Any
) -> Runner:
    """A quick-start run, up to its first iteration."""
    cfg = load_config(str(CONFIG))
    cfg.train_cfg.update(loop)
    cfg.custom_hooks = hooks
    cfg.default_hooks.pop('guard')
    if hooks:
        cfg.optim_wrapper.clip_grad = None
    return start(cfg, folder, name)


def start(cfg: Config, folder: str, name: str) -> Runner:
    """A quiet run without validation, up to its first iteration."""
    cfg.work_dir = f'{folder}/{name}'
    cfg.experiment_name = name
    cfg.log_level = 'ERROR'
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    runner = Runner.from_cfg(cfg)
    # The way of Runner.train to its loop.
    runner._train_loop = runner.build_train_loop(runner._train_loop)
    runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    runner.param_schedulers = runner.build_param_scheduler(
        runner.param_schedulers
    )
    runner.call_hook('before_run')
    runner.optim_wrapper.initialize_count_status(runner.model, 0, 10**6)
    runner.call_hook('before_train')
    runner.call_hook('before_train_epoch')
    runner.model.train()
    return runner


def race_hooks(rounds: int) -> Race:
    """Let the two trainings take turns."""
    with tempfile.TemporaryDirectory() as folder:
        runners = {
            'with hooks': ready_runner(folder, 'with', HOOKS),
            'without': ready_runner(folder, 'without', []),
        }
        batch = next(iter(runners['without'].train_dataloader))
        return race(
            [
                Contender(name, lambda r=r: r.train_loop.run_iter(batch))
                for name, r in runners.items()
            ],
            rounds,
        )


class Blocks(Module):
    """A list of parameters that has module names."""

    def __init__(self, params: list[Any]) -> None:
        super().__init__()
        third = len(params) // 3
        self.frame_blocks = ParameterList(params[:third])
        self.global_blocks = ParameterList(params[third : 2 * third])
        self.depth_head = ParameterList(params[2 * third :])


def race_clips(size: str, depth: int, rounds: int) -> Race:
    """Let the step with modules clipped apart race the common one."""
    data = GradedParameters(vit_shapes(WIDTHS[size], depth))
    model = Blocks(data.params)
    optimizer = AdamW(data.params, lr=1e-6, fused=True)
    by_module = parse_clip(
        'benchmark',
        configs=[
            dict(module_name=['depth_head'], max_norm=0.5),
            dict(module_name=['frame_blocks', 'global_blocks'], max_norm=0.3),
        ],
    )
    contenders = []
    for name, clip in (
        ('by module', by_module),
        ('together', parse_clip('benchmark', max_norm=0.5)),
    ):
        wrapper = SafeAmpOptimWrapper(optimizer=optimizer, loss_scale=1024.0)
        wrapper.clip = clip
        wrapper.initialize_count_status(model, 0, 10**6)
        wrapper.step()
        contenders.append(Contender(name, wrapper.step, data.refill))
    return race(contenders, rounds)


def main() -> None:
    """Print the table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--quick', action='store_true', help='does it run?')
    parser.add_argument(
        '--json', type=Path, default=DEFAULT_FOLDER / 'hook_overhead.json'
    )
    args = parser.parse_args()
    torch.set_num_threads(2)
    hooks = race_hooks(3 if args.quick else 101)
    size = 'ViT-Ti' if args.quick else 'ViT-S'
    clips = race_clips(size, 1 if args.quick else 12, 3 if args.quick else 51)
    rows = [
        _row('quick start, fp16', hooks, 'with hooks', 'without', 1.01),
        _row(f'{size}, fused AdamW', clips, 'by module', 'together', 1.15),
    ]
    races = {'hooks': hooks.as_dict(), 'clips': clips.as_dict()}
    publish(args.json, rows, races)


def _row(case: str, one: Race, name: str, base: str, limit: float) -> Row:
    return Row(
        case=case,
        what=f'{name} / {base}',
        value=one.ratio(name, base),
        limit=limit,
        best=one.best_ratio(name, base),
        noise=one.noise,
        note=f'{1e3 * one.median(name):.2f} ms / '
        f'{1e3 * one.median(base):.2f} ms',
    )


if __name__ == '__main__':
    main()
