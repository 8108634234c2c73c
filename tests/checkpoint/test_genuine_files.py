"""Checkpoints of mmengine and mmcv, by old and new numpy, are resumed."""

from __future__ import annotations

import pickletools
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from mmengine.runner import CheckpointLoader

import mmstable  # noqa: F401  (guards mmengine's loader)
from mmstable.checkpoint.loading import load_checkpoint, load_file
from tests.checkpoint.stock_runs import (
    SAVED_AT,
    end_state,
    mmcv1_checkpoint,
    stock_runner,
)
from tests.toys import assert_same, toy_runner

DATA = Path(__file__).resolve().parent / 'data'


@pytest.fixture(scope='module')
def unbroken(tmp_path_factory):
    """A run that was never stopped, and one of its checkpoints."""
    folder = tmp_path_factory.mktemp('unbroken')
    runner = stock_runner(folder)
    runner.train()
    return end_state(runner), folder / f'iter_{SAVED_AT}.pth'


def saved_by(which: str, unbroken: Any) -> Path:
    if which == 'this numpy':
        return unbroken[1]
    return DATA / 'mmengine_numpy1.pth'


def names_in(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith('data.pkl')]
        operations = pickletools.genops(archive.read(name))
        return {arg for op, arg, _ in operations if op.name == 'GLOBAL'}


def assert_identical(left: Any, right: Any, path: str = '') -> None:
    """Equal in type and content, all the way down."""
    if isinstance(left, torch.Tensor) and left.layout != torch.strided:
        assert left.layout == right.layout, path
        left, right = left.to_dense(), right.to_dense()
    assert type(left) is type(right), path
    if isinstance(left, dict):
        assert list(left) == list(right), path
        for key in left:
            assert_identical(left[key], right[key], f'{path}/{key}')
        assert_identical(
            getattr(left, '_metadata', None),
            getattr(right, '_metadata', None),
            f'{path}/_metadata',
        )
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), path
        for index, pair in enumerate(zip(left, right)):
            assert_identical(*pair, f'{path}/{index}')
    elif isinstance(left, torch.Tensor):
        for what in ('dtype', 'device', 'requires_grad', 'shape'):
            assert getattr(left, what) == getattr(right, what), path
        assert left.stride() == right.stride(), path
        assert torch.equal(left, right), path
    elif isinstance(left, np.ndarray):
        assert left.dtype == right.dtype, path
        np.testing.assert_array_equal(left, right, path)
    elif isinstance(left, HistoryBuffer):
        assert_identical(vars(left), vars(right), path)
    else:
        assert left == right, path


@pytest.mark.parametrize('which', ['this numpy', 'numpy 1.26'])
def test_mmengine_resumes_to_the_same_end(tmp_path, unbroken, which):
    path = tmp_path / 'a.pth'
    shutil.copy(saved_by(which, unbroken), path)
    runner = stock_runner(tmp_path, load_from=str(path), resume=True)
    runner.train()
    assert not (tmp_path / f'iter_{SAVED_AT}.pth').exists()
    resumed = end_state(runner)
    if which == 'this numpy':
        assert_same(resumed, unbroken[0])
    else:
        # Another torch may round in another way.
        torch.testing.assert_close(resumed['model'], unbroken[0]['model'])
        torch.testing.assert_close(resumed['ema'], unbroken[0]['ema'])
        torch.testing.assert_close(resumed['losses'], unbroken[0]['losses'])
        assert resumed['kept'] == unbroken[0]['kept']


@pytest.mark.parametrize('which', ['this numpy', 'numpy 1.26'])
def test_content_is_what_torch_loads(unbroken, which):
    path = saved_by(which, unbroken)
    assert_identical(
        load_checkpoint(path), torch.load(path, weights_only=False)
    )


def test_the_files_are_what_they_should_be(unbroken):
    old = names_in(DATA / 'mmengine_numpy1.pth')
    new = names_in(unbroken[1])
    assert 'numpy.core.multiarray _reconstruct' in old
    assert 'numpy.core.multiarray scalar' in old
    if np.__version__ >= '2':
        assert 'numpy._core.multiarray _reconstruct' in new
    for names in (old, new):
        assert 'mmengine.logging.history_buffer HistoryBuffer' in names
        assert 'mmengine.config.config ConfigDict' in names
        assert not any('mmstable' in name for name in names)
    loaded = load_checkpoint(DATA / 'mmengine_numpy1.pth')
    assert 'loss_scaler' in loaded['optimizer']
    assert 'ema_state_dict' in loaded
    assert 'best_score' in loaded['message_hub']['runtime_info']
    assert loaded['param_schedulers'][0]['anneal_func']


def test_files_of_mmcv1(tmp_path):
    path = DATA / 'mmcv1_numpy1.pth'
    expected = mmcv1_checkpoint()
    assert_identical(load_file(path), expected)
    del expected['meta']['config']
    loaded = CheckpointLoader.load_checkpoint(str(path))
    assert_identical(loaded, expected)
    # Mmengine reads weights from it, and nothing of its meta is run.
    runner = toy_runner(tmp_path)
    assert runner.load_checkpoint(str(path), strict=False)['meta']['iter'] == 4
