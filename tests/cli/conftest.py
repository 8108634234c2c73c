"""A project to train, for the tests of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import score_project

TOY = """
import time
import torch
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS
from torch.utils.data import Dataset


@MODELS.register_module()
class ToyToolModel(BaseModel):
    def __init__(self, nap=0.0, fail=False):
        super().__init__()
        self.head = torch.nn.Linear(4, 2)
        self.nap, self.fail = nap, fail

    def forward(self, x, y, mode='loss'):
        if self.fail:
            raise RuntimeError('a fault in the model')
        time.sleep(self.nap)
        out = self.head(x)
        if mode == 'loss':
            return dict(loss=torch.nn.functional.cross_entropy(out, y))
        return out


@DATASETS.register_module()
class ToyToolDataset(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((4,), float(index)), index % 2
"""
CONFIG = """
# mmengine names a run by the second; several of one second would mix.
experiment_name = __import__('uuid').uuid4().hex
custom_imports = dict(imports=['toy_tool_project'])
model = dict(type='ToyToolModel')
train_dataloader = dict(
    batch_size=2,
    num_workers=0,
    dataset=dict(type='ToyToolDataset'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    collate_fn=dict(type='default_collate'),
)
train_cfg = dict(type='IterBasedTrainLoop', max_iters=4)
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.1))
default_hooks = dict(
    checkpoint=dict(type='CheckpointHook', interval=2, by_epoch=False),
    logger=dict(type='LoggerHook', interval=1),
)
log_processor = dict(by_epoch=False)
"""


@pytest.fixture(scope='session')
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config and the module that it imports."""
    folder = tmp_path_factory.mktemp('project')
    (folder / 'toy_tool_project.py').write_text(TOY)
    (folder / 'config.py').write_text(CONFIG)
    return folder


@pytest.fixture
def in_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in that folder."""
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.chdir(project)
    # A run that is configured by the command line must not leak into others.
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')


@pytest.fixture(scope='session')
def score_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the project of ``score_project``."""
    folder = tmp_path_factory.mktemp('score_project')
    score_project.write(folder)
    return folder


@pytest.fixture
def in_score_project(
    score_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stand in that folder."""
    monkeypatch.syspath_prepend(str(score_folder))
    monkeypatch.chdir(score_folder)
