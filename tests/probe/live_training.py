"""A training without an end, to be looked into from outside.

``python -m tests.probe.live_training FOLDER``. If there is a file
``hang`` in the folder, it hangs for as long as that is there.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from mmengine.hooks import Hook

from tests.loops.runs import iter_loop
from tests.toys import NAN, Sabotage, toy_runner


class Pace(Hook):
    """Lets others have the processor, or hangs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def after_train_iter(self, runner, *args, **kwargs):
        time.sleep(0.01)
        while (self.folder / 'hang').exists():
            time.sleep(0.1)


def train(folder: Path) -> None:
    runner = toy_runner(
        folder / 'run',
        dict(
            type='mmstable.SafeOptimWrapper',
            optimizer=dict(type='SGD', lr=0.01, momentum=0.9),
            clip_grad=dict(max_norm=5.0),
        ),
        10**6,
        [
            Pace(folder),
            Sabotage(grads={3: ('net.head.weight', NAN)}),
            dict(type='mmstable.EventLogHook'),
            dict(type='mmstable.EmergencyCheckpointHook'),
            dict(type='mmstable.LiveProbeHook', use_probing=True),
        ],
        train_cfg=iter_loop(10**6),
        param_scheduler=[dict(type='PolyLR', by_epoch=False, end=10**6)],
        default_hooks=dict(
            logger=dict(type='LoggerHook', interval=100),
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook',
                by_epoch=False,
                interval=10**6,
            ),
        ),
    )
    runner.train()


if __name__ == '__main__':
    train(Path(sys.argv[1]))
