"""The overlay that is written is the config that `mmstable train` trains."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from mmengine.config import Config

from mmstable.cli.command import STABILITY
from mmstable.cli.protect import overlay, python_overlay
from mmstable.errors import UsageError
from mmstable.protection import apply_changes, find_changes

PLAIN = """
optim_wrapper = dict(
    type='AmpOptimWrapper', optimizer=dict(type='SGD', lr=0.1),
    clip_grad=None)
train_cfg = dict(by_epoch=False, max_iters=3, val_interval=1)
val_cfg = dict()
test_cfg = None
"""
HOOKS = """
custom_hooks = [
    dict(type='SyncBuffersHook'),
    dict(type='EMAHook', momentum=0.1, priority=49),
    dict(type='mmstable.HeadroomHook', interval=7),
]
default_hooks = dict(
    checkpoint=dict(type='CheckpointHook', interval=3, save_best='auto'),
    logger=dict(type='LoggerHook', interval=5))
visualizer = dict(
    type='Visualizer', vis_backends=[dict(type='TensorboardVisBackend')])
"""
NONE = 'custom_hooks = None\ndefault_hooks = None\nvisualizer = None\n'
SEVERAL = """
optim_wrapper = dict(
    _delete_=True, constructor='Mine',
    gen=dict(optimizer=dict(type='SGD')), dis=dict(optimizer=dict(type='X')))
"""
PYTHON = """
from mmengine.hooks import CheckpointHook, EMAHook
from mmengine.optim import OptimWrapper
from torch.optim import SGD

optim_wrapper = dict(type=OptimWrapper, optimizer=dict(type=SGD, lr=0.1))
train_cfg = dict(by_epoch=True, max_epochs=3)
custom_hooks = [dict(type=EMAHook, momentum=0.1)]
default_hooks = dict(checkpoint=dict(type=CheckpointHook, interval=3))
"""


def settings_of(path: Path) -> dict[str, Any]:
    cfg = Config.fromfile(path, import_custom_modules=False)
    return cfg._cfg_dict.to_dict()


def written(path: Path, preset: str, write: Any = overlay) -> str:
    """Write an overlay, and see that it is what was meant."""
    before = settings_of(path)
    found = find_changes(before, preset)
    wanted = copy.deepcopy(before)
    apply_changes(wanted, found.changes)
    text = write(before, found, f'./{path.name}')
    output = path.with_name('protected.py')
    output.write_text(text, encoding='utf-8')
    # Python's own modules would be among the keys.
    after = {k: v for k, v in settings_of(output).items() if k in wanted}
    assert after == wanted
    assert find_changes(after, preset).changes == []
    return text


@pytest.mark.parametrize('preset', STABILITY)
@pytest.mark.parametrize(
    'more',
    ['', HOOKS, NONE, SEVERAL],
    ids=['plain', 'hooks', 'none', 'several'],
)
def test_it_is_what_is_trained(tmp_path: Path, more: str, preset: str) -> None:
    (tmp_path / 'base.py').write_text(PLAIN)
    path = tmp_path / 'my-config.py'
    path.write_text(f"_base_ = './base.py'\n{more}")
    text = written(path, preset)
    # One comment for every block.
    blocks = text.strip().split('\n\n')
    assert all(block.startswith('# ') for block in blocks)


def test_it_says_only_what_differs(tmp_path: Path) -> None:
    path = tmp_path / 'config.py'
    path.write_text(PLAIN + HOOKS)
    text = written(path, 'default')
    assert "optim_wrapper = dict(type='mmstable.SafeAmpOptimWrapper')" in text
    assert '    _base_.custom_hooks[0],\n' in text
    safe = "dict(_base_.custom_hooks[1], type='mmstable.SafeEMAHook')"
    assert safe in text
    assert "val_cfg = dict(type='mmstable.SafeValLoop')" in text
    for word in ('momentum', 'save_best', 'SGD', 'interval=5', 'test_cfg'):
        assert word not in text


def test_a_fixed_loss_scale_becomes_a_capped_one(tmp_path: Path) -> None:
    path = tmp_path / 'config.py'
    path.write_text(PLAIN.replace('clip_grad=None', 'loss_scale=512.0'))
    assert 'max_scale=512.0' in written(path, 'default')


def test_later_changes_of_the_base_count(tmp_path: Path) -> None:
    path = tmp_path / 'config.py'
    path.write_text(PLAIN)
    written(path, 'default')
    path.write_text(PLAIN.replace('max_iters=3', 'max_iters=7'))
    loop = settings_of(tmp_path / 'protected.py')['train_cfg']
    assert (loop['max_iters'], 'by_epoch' in loop) == (7, False)


def test_it_inherits_from_json(tmp_path: Path) -> None:
    path = tmp_path / 'config.json'
    content = dict(optim_wrapper=dict(optimizer=dict(type='SGD', lr=1)))
    path.write_text(json.dumps(content))
    written(path, 'safe')


@pytest.mark.parametrize('preset', STABILITY)
@pytest.mark.parametrize('more', ['', 'visualizer = None\n'])
def test_python_configs_get_one_of_their_kind(
    tmp_path: Path, preset: str, more: str
) -> None:
    path = tmp_path / 'config.py'
    path.write_text(PYTHON + more)
    text = written(path, preset, python_overlay)
    assert 'from .config import *' in text


@pytest.mark.parametrize(
    ('base', 'module'),
    [('./a.py', '.a'), ('../a/b.py', '..a.b'), ('../../b.py', '...b')],
)
def test_python_configs_are_modules(base: str, module: str) -> None:
    text = python_overlay({}, find_changes({}), base)
    assert f'    from {module} import *' in text


def test_not_every_file_is_a_module() -> None:
    with pytest.raises(UsageError, match='cannot inherit from'):
        python_overlay({}, find_changes({}), './r50-fp16.py')
