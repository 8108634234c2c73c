"""When are the classes registered?  Each case in a fresh interpreter."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import mmstable
from mmstable import hooks, loops, optim, strategies
from mmstable.legacy import schedules
from tests.cli.runs import (
    ROOT,
    console_script,
    iterations,
    path_without_torch,
    run,
)

# Nothing in it names mmstable, except by bare names.
CONFIG = """
custom_imports = dict(imports=['names_project'])
model = dict(type='ToyNamesModel')
train_dataloader = dict(
    batch_size=2, num_workers={workers},
    dataset=dict(type='ToyNamesDataset'),
    sampler=dict(type='DefaultSampler', shuffle=False),
    collate_fn=dict(type='default_collate'), {loader})
train_cfg = dict(type='SafeIterBasedTrainLoop', max_iters=2)
optim_wrapper = dict(
    type='SafeOptimWrapper', optimizer=dict(type='SGD', lr=0.1))
default_hooks = dict(logger=dict(type='LoggerHook', interval=1))
custom_hooks = [dict(type='DivergenceGuardHook')]
log_processor = dict(by_epoch=False)
"""
PROJECT = """
import mmstable
import torch
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS, MODELS
from torch.utils.data import Dataset

# As soon as mmstable is imported, by whomever; bare names may come later.
assert HOOKS.get('mmstable.DivergenceGuardHook') is not None


@MODELS.register_module()
class ToyNamesModel(BaseModel):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x, y, mode='loss'):
        out = self.head(x)
        return dict(loss=torch.nn.functional.cross_entropy(out, y))


@DATASETS.register_module()
class ToyNamesDataset(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.full((4,), float(index)), index % 2
"""
RUNNER = """
from mmengine.config import Config
from mmengine.runner import Runner
Runner.from_cfg(Config.fromfile('config.py')).train()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / 'names_project.py').write_text(PROJECT)
    text = CONFIG.format(workers=0, loader='')
    (tmp_path / 'config.py').write_text(text + "work_dir = 'work'\n")
    return tmp_path


def registers(command: list[str], folder: Path) -> bool:
    """Whether a command imports what registers the classes."""
    path = path_without_torch(folder)
    code, _, err = run(command, folder, path=path)
    assert err in ('', 'tried to import it\n')
    return code != 0


def check(command: list[str], folder: Path) -> None:
    code, out, err = run(command, folder)
    assert code == 0, out + err


@pytest.mark.parametrize(
    'program', ['train.py', 'mmstable', 'tools/train.py', '__main__.py']
)
def test_programs_of_others_register_at_once(
    program: str, tmp_path: Path
) -> None:
    path = tmp_path / 'mine' / program
    path.parent.mkdir(parents=True)
    path.write_text('import mmstable\n')
    assert registers([sys.executable, str(path)], tmp_path)


@pytest.mark.parametrize('code', ['import mmstable', 'import mmstable.cli'])
def test_any_import_registers_at_once(code: str, tmp_path: Path) -> None:
    assert registers([sys.executable, '-c', code], tmp_path)


@pytest.mark.parametrize(
    ('words', 'expected'),
    [
        (['-m', 'mine'], True),
        (['-m', 'mine', '-m', 'mmstable'], True),
        (['-m', 'mmstable', '--version'], sys.version_info < (3, 10)),
        (['-Bm', 'mmstable', '--version'], sys.version_info < (3, 10)),
    ],
)
def test_modules_that_are_run(
    words: list[str], expected: bool, tmp_path: Path
) -> None:
    (tmp_path / 'mine').mkdir()
    (tmp_path / 'mine/__init__.py').write_text('import mmstable\n')
    (tmp_path / 'mine/__main__.py').touch()
    assert registers([sys.executable, *words], tmp_path) is expected


def test_config_with_custom_imports(folder: Path) -> None:
    path = folder / 'config.py'
    path.write_text(path.read_text().replace('names_project', 'mmstable', 1))
    code = 'import names_project\n' + RUNNER
    for line in ('import mmstable\n', 'assert '):
        project = folder / 'names_project.py'
        kept = project.read_text().splitlines(keepends=True)
        project.write_text(''.join(x for x in kept if not x.startswith(line)))
    check([sys.executable, '-c', code], folder)
    assert iterations(folder / 'work') == [1, 2]


@pytest.mark.parametrize(
    'door',
    [
        'script',
        pytest.param('module', marks=pytest.mark.soak),
        pytest.param('tool', marks=pytest.mark.soak),
    ],
)
def test_commands_find_the_project_and_its_bare_names(
    door: str, folder: Path
) -> None:
    command = {
        'script': [*console_script(folder), 'train'],
        'module': [sys.executable, '-m', 'mmstable', 'train'],
        'tool': [sys.executable, str(ROOT / 'tools/train.py')],
    }[door]
    check([*command, 'config.py'], folder)
    assert iterations(folder / 'work') == [1, 2]


@pytest.mark.soak
def test_workers_of_a_command(folder: Path) -> None:
    """They import the project, and mmstable with it, on their own."""
    text = CONFIG.format(workers=1, loader="multiprocessing_context='spawn'")
    (folder / 'config.py').write_text(text + "work_dir = 'work'\n")
    check([*console_script(folder), 'train', 'config.py'], folder)
    assert iterations(folder / 'work') == [1, 2]


@pytest.mark.dist
@pytest.mark.soak
def test_torchrun(folder: Path) -> None:
    launch = [sys.executable, '-m', 'torch.distributed.run', '--standalone']
    check(
        [*launch, '--nproc_per_node=2', '-m', 'mmstable', 'train']
        + ['config.py', '--launcher', 'pytorch'],
        folder,
    )
    assert iterations(folder / 'work') == [1, 2]


def test_public_classes() -> None:
    names: dict[str, Any] = {}
    exec('from mmstable import *', names)
    assert names['SafeFSDPStrategy'] is strategies.SafeFSDPStrategy
    for package in (hooks, loops, optim, schedules):
        for name in package.__all__:
            assert names[name] is getattr(package, name)
    assert set(names) - {'__builtins__'} <= set(dir(mmstable))
    with pytest.raises(AttributeError, match="no attribute 'SafeEMAHok'"):
        mmstable.SafeEMAHok  # noqa: B018
