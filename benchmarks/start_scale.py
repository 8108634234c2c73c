"""Skipped steps against the start value of the loss scale.

Trains the quick-start model for a while from each start value, first moving
and then frozen (what stock mmengine does with a float). The columns are
skipped steps, the scale at the end, and the mean loss of the last 10
iterations, for both.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from mmengine.runner import Runner

from mmstable.cli.config import load_config

CONFIG = (
    Path(__file__).parents[1] / 'configs/quickstart/digit-scenes_fcn_fp16.py'
)


def train(scale: float, frozen: bool, iterations: int) -> Runner:
    """Train from a start value."""
    cfg = load_config(str(CONFIG))
    cfg.train_cfg.max_iters = iterations
    cfg.optim_wrapper.loss_scale = dict(
        init_scale=scale, max_scale=2.0**40, frozen=frozen
    )
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    cfg.param_scheduler = None
    cfg.log_level = 'ERROR'
    cfg.custom_hooks = []
    with tempfile.TemporaryDirectory() as folder:
        cfg.work_dir = folder
        runner = Runner.from_cfg(cfg)
        runner.train()
    return runner


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--iterations', type=int, default=60)
    parser.add_argument(
        '--powers', type=int, nargs='+', default=[9, 10, 12, 16, 20, 24, 32]
    )
    args = parser.parse_args()
    print('| start | skipped | scale | loss | skipped | scale | loss |')
    print('|---|---|---|---|---|---|---|')
    for power in args.powers:
        cells = [f'{2**power}']
        for frozen in (False, True):
            runner = train(2.0**power, frozen, args.iterations)
            wrapper = runner.optim_wrapper
            loss = runner.message_hub.get_scalar('train/loss').mean(10)
            cells += [
                str(wrapper.skipped_steps),
                f'{wrapper.loss_scaler.get_scale():.0f}',
                f'{loss:.3f}',
            ]
        print(f'| {" | ".join(cells)} |', flush=True)


if __name__ == '__main__':
    main()
