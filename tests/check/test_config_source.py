"""Which line has set it?  Read off the files, without running them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmstable.check.source import ConfigSource, sets_in_vain

BASE = """\
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(
        type='SGD',
        lr=0.1),
    clip_grad=None)
custom_hooks = [
    dict(type='A'),
    dict(type='B'),
]
batch = 4
loader = dict(
    batch_size=batch)
train_dataloader = loader
"""
LEAF = """\
_base_ = ['./base.py']
optim_wrapper = dict(
    loss_scale=512.,
    optimizer=dict(
        lr=0.2))
param_scheduler = {
    'type': 'PolyLR',
    'end': 5,
}
val_cfg = dict(
    _delete_=True)
computed = dict(**param_scheduler)
computed['a'] = 1
"""


@pytest.fixture
def leaf(tmp_path: Path) -> Path:
    (tmp_path / 'base.py').write_text(BASE)
    (tmp_path / 'leaf.py').write_text(LEAF)
    return tmp_path / 'leaf.py'


@pytest.mark.parametrize(
    ('path', 'line'),
    [
        ('optim_wrapper.loss_scale', 'leaf.py:3'),
        ('optim_wrapper.optimizer.lr', 'leaf.py:5'),
        ('optim_wrapper.optimizer.type', 'base.py:4'),
        ('optim_wrapper.type', 'base.py:2'),
        ('param_scheduler.end', 'leaf.py:8'),
        ('custom_hooks.1.type', 'base.py:9'),
        ('train_dataloader.batch_size', 'base.py:14'),
        # What replaces it is to blame for what is missing.
        ('val_cfg.type', 'leaf.py:10'),
        # Set nowhere: the nearest above it.
        ('optim_wrapper.dtype', 'base.py:1'),
        ('custom_hooks.7', 'base.py:7'),
        ('default_hooks.timer', ''),
        ('computed.type', ''),
    ],
)
def test_line_of_a_path(leaf: Path, path: str, line: str) -> None:
    found = ConfigSource(str(leaf)).line_of(path)
    assert found == (str(leaf.parent / line) if line else '')


def test_no_file_is_blamed_for_the_command_line(leaf: Path) -> None:
    source = ConfigSource(str(leaf), ('optim_wrapper.loss_scale',))
    assert source.line_of('optim_wrapper.loss_scale') == ''
    assert source.line_of('optim_wrapper') == ''
    assert source.line_of('optim_wrapper.optimizer.lr') != ''


@pytest.mark.parametrize(
    'text',
    [
        "_base_ = ['./base.py'] if 1 else []\n",
        "_base_ = './base.py'\nfor i in range(3):\n    optim_wrapper = i\n",
        "_base_ = './base.py'\noptim_wrapper = {**_base_.optim_wrapper}\n",
        "_base_ = './base.py'\noptim_wrapper['type'] = 'B'\n",
        "_base_ = './nothing.py'\n",
        'optim_wrapper = = 1\n',
    ],
)
def test_what_cannot_be_told_is_not_said(leaf: Path, text: str) -> None:
    leaf.write_text(text)
    assert ConfigSource(str(leaf)).line_of('optim_wrapper.type') == ''


def test_bases_by_import(leaf: Path) -> None:
    leaf.write_text(
        'from mmengine.config import read_base\n'
        'with read_base():\n'
        '    from .base import *\n'
        'optim_wrapper.update(\n'
        '    dict(\n'
        "        dtype='float16'))\n"
    )
    source = ConfigSource(str(leaf))
    assert source.line_of('optim_wrapper.dtype') == f'{leaf}:6'
    assert source.line_of('optim_wrapper.type').endswith('base.py:2')


def test_nothing_is_run(tmp_path: Path) -> None:
    path = tmp_path / 'evil.py'
    path.write_text("open('/tmp/mmstable_was_here', 'w')\na = 1\n")
    assert ConfigSource(str(path)).line_of('a') == f'{path}:2'
    assert not Path('/tmp/mmstable_was_here').exists()


def test_other_files_have_no_lines(tmp_path: Path) -> None:
    path = tmp_path / 'config.yaml'
    path.write_text('a: 1\n')
    assert ConfigSource(str(path)).line_of('a') == ''


@pytest.mark.parametrize(
    ('text', 'is_vain'),
    [
        ('optim_wraper = dict(a=1)\n', True),
        ('optim_wraper = dict(a=1)\nlr = _base_.optim_wrapper.lr\n', True),
        # A variable.
        ('optim_wraper = dict(a=1)\nb = [optim_wraper]\n', False),
        # Both are there: nothing was mistaken for the other.
        ('optim_wraper = dict(a=1)\noptim_wrapper = dict(b=1)\n', False),
        ('optim_wraper = dict(a=1)\noptim_wrapper.update(b=1)\n', False),
        ('train_cfg = dict(optim_wraper=1)\n', False),
        ('optim_wraper = = 1\n', False),
    ],
)
def test_a_name_that_is_set_in_vain(
    leaf: Path, text: str, is_vain: bool
) -> None:
    leaf.write_text(f"_base_ = './base.py'\n{text}")
    found = sets_in_vain(str(leaf), 'optim_wraper', 'optim_wrapper')
    assert found is is_vain


def test_a_name_that_a_base_knows_is_one_of_the_project(leaf: Path) -> None:
    leaf.write_text("_base_ = './middle.py'\noptim_wraper = 3\n")
    middle = leaf.with_name('middle.py')
    middle.write_text("_base_ = './base.py'\n")
    assert sets_in_vain(str(leaf), 'optim_wraper', 'optim_wrapper')
    leaf.with_name('base.py').write_text('optim_wraper = 2\n')
    assert not sets_in_vain(str(leaf), 'optim_wraper', 'optim_wrapper')
