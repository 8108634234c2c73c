"""Thousands of damaged checkpoints: loaded, or refused with a reason."""

from __future__ import annotations

import builtins
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.optim.scheduler.param_scheduler import OneCycleParamScheduler

from mmstable.checkpoint.catalog import GoodCheckpoint, verify_checkpoint
from mmstable.checkpoint.loading import BadCheckpoint, load_file
from tests.checkpoint.mutations import (
    IN_PICKLE,
    Mutation,
    cut_off,
    flip_bits,
    mutate_archive,
    mutate_legacy,
)
from tests.checkpoint.pickles import save
from tests.checkpoint.stock_runs import SAVED_AT, stock_runner
from tests.toys import toy_runner

FILES = ('stock', 'stock, old format', 'safe', 'safe, old format')
CLASSES = (
    HistoryBuffer, OrderedDict, Counter, ConfigDict, np.ndarray, np.dtype,
    torch.Tensor, torch.nn.Parameter, OneCycleParamScheduler,
)  # fmt: skip
PLAIN = {
    type(None), bool, int, float, complex, str, bytes, bytearray, torch.Size,
    torch.dtype, torch.device, torch.layout, torch.qscheme, torch.Tensor,
    torch.nn.Parameter, np.ndarray, HistoryBuffer, type(lambda: 0),
}  # fmt: skip
CONTAINERS = {dict, list, tuple, set, frozenset, OrderedDict, Counter,
              ConfigDict}  # fmt: skip


@pytest.fixture(scope='module')
def genuine(tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp('genuine')
    stock_runner(folder / 'stock').train()
    toy_runner(
        folder / 'safe',
        optim_wrapper=dict(
            type='mmstable.SafeAmpOptimWrapper',
            optimizer=dict(type='AdamW', lr=0.01),
        ),
        max_iters=SAVED_AT,
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook', interval=SAVED_AT,
                by_epoch=False,
            )
        ),
        custom_hooks=[dict(type='EMAHook')],
        param_scheduler=dict(type='MultiStepLR', milestones=[2, 3]),
    ).train()  # fmt: skip
    files = {}
    for kind in ('stock', 'safe'):
        path = folder / kind / f'iter_{SAVED_AT}.pth'
        files[kind] = path.read_bytes()
        old = save(load_file(path), folder / f'{kind}.pth', is_zip=False)
        files[f'{kind}, old format'] = old.read_bytes()
    return files


def shape_of_the_process() -> list[Any]:
    """What a file could change for others."""
    shape: list[Any] = [dict(vars(one)) for one in CLASSES]
    shape += [dict(HistoryBuffer._statistics_methods), dict(vars(builtins))]
    shape += [set(torch.serialization.get_safe_globals())]
    return shape


def walk(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from walk(item)
    elif type(value) in CONTAINERS:
        for item in value:
            yield from walk(item)


def judge(path: Path) -> str:
    """Load and verify a file, and look at all that comes of it."""
    verdicts = []
    for look in (load_file, verify_checkpoint):
        start = time.thread_time()
        try:
            result = look(path)
            verdicts.append('fine')
        except BadCheckpoint as error:
            result = None
            assert str(error).isprintable()
            assert len(str(error)) < 2000
            verdicts.append(error.reason.split(':')[0])
        assert time.thread_time() - start < 1
        for value in walk(result):
            kind = type(value)
            assert (
                kind in PLAIN
                or kind in CONTAINERS
                or kind is GoodCheckpoint
                or isinstance(value, np.generic)
            ), kind
    return verdicts[0]


MUTATIONS = [
    *(('whole file', mutation) for mutation in (flip_bits, cut_off)),
    *(('pickle', mutation) for mutation in IN_PICKLE),
]


def run_mutations(data: bytes, folder: Path, is_old: bool, count: int) -> None:
    """Mutate a file in every way, so many times in all."""
    marker, path = str(folder / 'marker'), folder / 'iter_4.pth'
    mutate_pickle = mutate_legacy if is_old else mutate_archive
    verdicts: Counter[str] = Counter()

    @settings(max_examples=count)
    @given(st.sampled_from(MUTATIONS), st.randoms(use_true_random=False))
    def damage(where_and_how: tuple[str, Mutation], random: Random) -> None:
        where, mutation = where_and_how
        if where == 'pickle':
            changed = mutate_pickle(data, mutation, random, marker)
        else:
            changed = mutation(data, random, marker)
        path.write_bytes(changed)
        verdicts[judge(path)] += 1

    damage()
    assert [one.name for one in folder.iterdir()] == ['iter_4.pth']
    # All ways to end were taken.
    assert verdicts['fine'] > count / 40
    assert verdicts['refused'] > count / 16
    assert verdicts['corrupt'] + verdicts['foreign'] > count / 16
    assert verdicts['truncated'] > count / 200


@pytest.mark.parametrize('file', FILES)
def test_damage_is_survived(tmp_path, genuine, file):
    before = shape_of_the_process()
    (tmp_path / 'iter_4.pth').write_bytes(genuine[file])
    assert judge(tmp_path / 'iter_4.pth') == 'fine'
    run_mutations(genuine[file], tmp_path, 'old' in file, 400)
    assert shape_of_the_process() == before


@pytest.mark.soak
@pytest.mark.parametrize('file', FILES)
def test_damage_is_survived_for_long(tmp_path, genuine, file):
    before = shape_of_the_process()
    run_mutations(genuine[file], tmp_path, 'old' in file, 10000)
    assert shape_of_the_process() == before
