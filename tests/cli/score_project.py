"""A project whose runs can be cut, forked and copied by ``mmstable train``."""

from __future__ import annotations

from pathlib import Path

from mmstable.cli.main import main

TOY = """
import errno
import threading

import torch
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.logging import MessageHub
from mmengine.model import BaseModel
from mmengine.registry import (
    DATASETS, HOOKS, METRICS, MODELS, VISBACKENDS
)
from mmengine.visualization import BaseVisBackend
from torch.utils.data import Dataset


@MODELS.register_module()
class ScoreModel(BaseModel):
    def __init__(self, width=4, depth=1, fail_at=0, name='body'):
        super().__init__()
        layers = [torch.nn.Linear(4, width)]
        layers += [torch.nn.Linear(width, width) for _ in range(depth - 1)]
        self.add_module(name, torch.nn.Sequential(*layers))
        self.add_module(f'{name}_head', torch.nn.Linear(width, 2))
        self.name, self.fail_at, self.calls = name, fail_at, 0

    def forward(self, x, y, mode='loss'):
        self.calls += mode == 'loss'
        if self.fail_at and self.calls == self.fail_at:
            raise RuntimeError('a fault in the model')
        out = getattr(self, self.name)(x)
        out = getattr(self, f'{self.name}_head')(out)
        if mode == 'loss':
            return dict(loss=torch.nn.functional.cross_entropy(out, y))
        return list(out)


@MODELS.register_module()
class ScoreAdapter(ScoreModel):
    '''Saves its head only, as a model with a frozen part does.'''

    def state_dict(self, *args, **kwargs):
        state = super().state_dict(*args, **kwargs)
        for key in [k for k in state if '_head' not in k]:
            del state[key]
        return state


@MODELS.register_module()
class RenamedModel(ScoreModel):
    '''Reads checkpoints in which the head had another name.'''

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.tail = self.body_head
        self._modules.pop('body_head')

    def forward(self, *args, **kwargs):
        self.__dict__['body_head'] = self.tail
        return super().forward(*args, **kwargs)

    def _load_from_state_dict(self, state, prefix, *args):
        for key in [k for k in state if 'body_head' in k]:
            state[key.replace('body_head', 'tail')] = state.pop(key)
        super()._load_from_state_dict(state, prefix, *args)


@DATASETS.register_module()
class ScoreDataset(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((4,), 0.1 * index), index % 2


@VISBACKENDS.register_module()
class Broken(BaseVisBackend):
    '''Fails, or blocks, from a record on.'''

    def __init__(self, save_dir=None, start=1, block=False):
        super().__init__(save_dir)
        self.count, self.start, self.block = 0, start, block

    @property
    def experiment(self):
        return self

    def _init_env(self):
        pass

    def add_config(self, config, **kwargs):
        self._record()

    def add_scalars(self, scalar_dict, step=0, file_path=None, **kwargs):
        self._record()

    def _record(self):
        self.count += 1
        if self.count >= self.start:
            if self.block:
                threading.Event().wait()
            raise OSError(errno.ENOSPC, 'No space left on device')


@HOOKS.register_module()
class FillDisk(Hook):
    def __init__(self, folder, at):
        self.folder, self.at = folder, at

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter + 1 == self.at:
            with open(f'{self.folder}/rubbish', 'wb', 0) as file:
                try:
                    while True:
                        file.write(bytes(1000))
                except OSError as error:
                    assert error.errno == errno.ENOSPC
            print('the disk is full')


@METRICS.register_module()
class Score(BaseMetric):
    '''The iteration, or what is given for it.'''

    def __init__(self, given=None):
        super().__init__()
        self.given = given or {}

    def process(self, data_batch, data_samples):
        self.results.append(0)

    def compute_metrics(self, results):
        done = MessageHub.get_current_instance().get_info('iter') + 1
        return dict(score=float(self.given.get(str(done), done)))
"""
CONFIG = """
experiment_name = __import__('uuid').uuid4().hex
custom_imports = dict(imports=['toy_score_project'])
model = dict(type='ScoreModel')
train_dataloader = dict(
    batch_size=2,
    num_workers=0,
    dataset=dict(type='ScoreDataset'),
    sampler=dict(type='InfiniteSampler', shuffle=True),
    collate_fn=dict(type='default_collate'),
)
val_dataloader = dict(
    batch_size=8,
    num_workers=0,
    dataset=dict(type='ScoreDataset'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    collate_fn=dict(type='default_collate'),
)
val_cfg = dict()
val_evaluator = dict(type='Score')
train_cfg = dict(
    type='mmstable.SafeIterBasedTrainLoop', max_iters=8, val_interval=1000
)
optim_wrapper = dict(
    type='mmstable.SafeOptimWrapper',
    optimizer=dict(type='SGD', lr=0.1, momentum=0.9),
)
default_hooks = dict(
    checkpoint=dict(
        type='mmstable.SafeCheckpointHook', interval=2, by_epoch=False
    ),
    logger=dict(type='LoggerHook', interval=1),
)
custom_hooks = [dict(type='mmstable.EmergencyCheckpointHook')]
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)
"""


DASHBOARDS = """
_base_ = ['./config.py']
visualizer = dict(
    type='Visualizer',
    vis_backends=[
        dict(type='LocalVisBackend'),
        dict(type='TensorboardVisBackend'),
        dict(type='Broken'),
    ],
)
"""


def write(folder: Path) -> None:
    (folder / 'toy_score_project.py').write_text(TOY)
    (folder / 'dashboards.py').write_text(DASHBOARDS)
    (folder / 'config.py').write_text(CONFIG)


def train(
    work: Path, *words: str, config: str = 'config.py', **options: object
) -> int:
    """Run ``mmstable train`` in this process.

    Args:
        work: The work directory.
        words: More of the command line.
        config: The config.
        options: For ``--cfg-options``; '__' stands for a dot.
    """
    given = [f'{k.replace("__", ".")}={v}' for k, v in options.items()]
    if any(option.partition('=')[0].endswith('.type') for option in given):
        # A class that is asked for stays what it is.
        words += ('--as-is',)
    line = ['train', config, '--work-dir', str(work), *words]
    return main([*line, '--cfg-options', *given] if given else line)


def saved(work: Path) -> list[str]:
    return sorted(p.name for p in work.glob('*.pth'))
