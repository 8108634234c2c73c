"""A script: how many functions does `mmstable train` call before it trains?

It is run as a process, since nothing of mmstable may be imported before::

    python -m tests.start_calls CONFIG WORK_DIR
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from inspect import CO_OPTIMIZED
from pathlib import Path
from typing import Any

PACKAGE = str(Path(__file__).resolve().parents[1] / 'mmstable')
# A config of stock mmengine, and what it imports.
TOYS = """
from mmengine.registry import DATASETS, MODELS

from tests.toys import ToyData, ToyModel

DATASETS.register_module(module=ToyData)
MODELS.register_module(module=ToyModel)
"""
CONFIG = """
custom_imports = dict(imports=['start_toys'])
model = dict(type='ToyModel')
train_dataloader = dict(
    batch_size=2,
    sampler=dict(type='DefaultSampler', shuffle=True),
    collate_fn=dict(type='default_collate'),
    dataset=dict(type='ToyData'),
)
train_cfg = dict(type='IterBasedTrainLoop', max_iters=4, val_interval=10)
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4),
    clip_grad=dict(max_norm=35),
)
default_hooks = dict(
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=4)
)
"""


def write_toy(folder: Path) -> Path:
    """Write a config that trains a few iterations of the toy model.

    Args:
        folder (Path): Has to be in ``PYTHONPATH`` when it is trained.
    """
    (folder / 'start_toys.py').write_text(TOYS)
    path = folder / 'toy.py'
    path.write_text(CONFIG)
    return path


class Counting:
    """Counts calls of functions of mmstable up to the first batch.

    Bodies of modules and classes are no calls, nor are comprehensions.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        """Be told of a call by ``sys.setprofile``."""
        code = frame.f_code
        if event != 'call' or not code.co_filename.startswith(PACKAGE):
            return
        if code.co_name == 'run_iter':
            sys.setprofile(None)
        elif code.co_flags & CO_OPTIMIZED and code.co_name[0] != '<':
            path = code.co_filename[len(PACKAGE) + 1 :]
            self.calls[f'{path}:{code.co_name}'] += 1


def main() -> None:
    config, work_dir = sys.argv[1:]
    counting = Counting()
    sys.argv = ['mmstable', 'train', config, '--work-dir', work_dir]
    sys.setprofile(counting)
    import mmstable_command

    code = mmstable_command.main()
    sys.setprofile(None)
    Path(work_dir, 'calls.json').write_text(json.dumps(counting.calls))
    sys.exit(code)


if __name__ == '__main__':
    main()
