"""The memory presets load, train, and are what the estimate thinks."""

from __future__ import annotations

from pathlib import Path

import pytest
from mmengine.config import Config

from mmstable.cli.main import main
from mmstable.memory.estimate import PRESETS
from tests.some_files import some_files

CONFIGS = Path(__file__).parents[2] / 'configs'
BASE = CONFIGS / '_base_' / 'memory'
NAMES = [preset.name for preset in PRESETS]
TINY = [
    'train_cfg.max_iters=4',
    'train_cfg.val_interval=4',
    'train_dataloader.dataset.num_scenes=32',
    'train_dataloader.num_workers=1',
    'val_dataloader.dataset.num_scenes=4',
    'val_dataloader.num_workers=1',
    'param_scheduler.0.end=2',
    'param_scheduler.1.begin=2',
    'param_scheduler.1.end=4',
    'model.channels=(4,4,4)',
]


def leaf(folder: Path, name: str, base: Path, more: str = '') -> Path:
    path = folder / f'{name}.py'
    path.write_text(
        f"""_base_ = ['{base}', '{BASE}/{name}.py']
optim_wrapper = _base_.memory.optim_wrapper
train_dataloader = _base_.memory.train_dataloader
val_dataloader = _base_.memory.val_dataloader
custom_hooks = [*_base_.get('custom_hooks', []), _base_.memory.hook]
{more}
"""
    )
    return path


def test_every_file_is_known():
    files = {path.stem for path in some_files(BASE, '*.py')}
    assert files == {*NAMES, 'loader'}


@pytest.mark.parametrize('preset', PRESETS, ids=NAMES)
def test_the_estimate_knows_what_is_in_the_file(preset):
    memory = Config.fromfile(BASE / f'{preset.name}.py').memory
    wrapper, loader = memory.optim_wrapper, memory.train_dataloader
    assert wrapper.accumulative_counts == preset.accumulation
    assert wrapper.get('dtype') == preset.dtype
    assert 'modules' not in memory.hook
    # The same number of samples in a step, whatever the preset.
    assert loader.batch_size * wrapper.accumulative_counts == 16
    for one in (loader, memory.val_dataloader):
        assert (one.num_workers, one.prefetch_factor) == (4, 2)
        assert one.persistent_workers is False


@pytest.mark.parametrize('name', NAMES)
def test_an_overlay_keeps_the_rest(tmp_path, name):
    quick = CONFIGS / 'quickstart/digit-scenes_fcn_fp16.py'
    before = Config.fromfile(quick)
    cfg = Config.fromfile(leaf(tmp_path, name, quick))
    assert cfg.optim_wrapper.optimizer == before.optim_wrapper.optimizer
    assert cfg.train_dataloader.dataset == before.train_dataloader.dataset
    assert cfg.custom_hooks[:-1] == before.custom_hooks
    assert cfg.optim_wrapper.type == 'mmstable.SafeAmpOptimWrapper'


@pytest.mark.parametrize(
    'name',
    [NAMES[0], *(pytest.param(n, marks=pytest.mark.soak) for n in NAMES[1:])],
)
def test_the_quick_start_trains_with_it(tmp_path, name):
    quick = CONFIGS / 'quickstart/digit-scenes_fcn_fp16.py'
    # This model has no backbone; its parts are named instead.
    more = "custom_hooks[-1]['modules'] = [r'encoder\\.\\d+', 'context']"
    path = leaf(tmp_path, name, quick, more)
    words = ['train', str(path), '--work-dir', str(tmp_path / 'work')]
    assert main([*words, '--cfg-options', *TINY]) == 0
    assert (tmp_path / 'work' / 'iter_4.pth').exists()
