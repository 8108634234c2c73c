"""A healthy protected run is the stock run: losses, weights, schedules."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.hooks import EMAHook

from tests.protection.healthy import (
    SGD,
    CpuAmpOptimWrapper,
    LateWeights,
    OwnOptimWrapper,
    TwoNets,
    named,
    outcome,
    protected,
    stock_config,
    train,
)
from tests.torch_features import skip_without_half
from tests.toys import assert_same

NONE = dict(val_dataloader=None, val_evaluator=None, val_cfg=None)
ITERS = dict(train_cfg=dict(by_epoch=False, max_iters=9, val_interval=4))
ADAMW = dict(type='AdamW', lr=0.01)
MOMENTUM = [
    dict(type='CosineAnnealingLR', T_max=9, by_epoch=False),
    dict(type='LinearMomentum', by_epoch=False, end=6),
]


def wrapper(**settings: Any) -> dict[str, Any]:
    return dict(optim_wrapper=dict(optimizer=dict(SGD), **settings))


def loaders(count: int, **settings: Any) -> dict[str, Any]:
    """Data that other processes read, for ever in training."""
    cfg = stock_config()
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.update(num_workers=count, **settings)
    cfg.train_dataloader.sampler = dict(type='InfiniteSampler')
    names = ('train_dataloader', 'val_dataloader')
    return {name: cfg[name].to_dict() for name in names}


EXACT = {
    'epochs': {},
    'iterations': ITERS,
    'typed loop': dict(
        train_cfg=dict(type='EpochBasedTrainLoop', max_epochs=2),
        val_cfg=dict(type='ValLoop'),
    ),
    'adamw': dict(optim_wrapper=dict(optimizer=ADAMW)),
    'accumulation': {**wrapper(accumulative_counts=3), **ITERS},
    'average': dict(custom_hooks=[dict(type='EMAHook', momentum=0.1)]),
    'average by its path': dict(
        custom_hooks=[dict(type=named(EMAHook), begin_iter=2)]
    ),
    'momentum': {**ITERS, 'param_scheduler': MOMENTUM},
    'own wrapper': dict(
        optim_wrapper=dict(type=named(OwnOptimWrapper), optimizer=SGD),
        custom_hooks=[dict(type='EMAHook')],
    ),
    'two nets': dict(
        **NONE,
        **ITERS,
        model=dict(type=named(TwoNets)),
        param_scheduler=None,
        optim_wrapper=dict(
            constructor='OneForEachNet',
            critic=dict(optimizer=SGD),
            generator=dict(type='OptimWrapper', optimizer=ADAMW),
        ),
    ),
    'weights drawn late': {
        **ITERS,
        'model': dict(type=named(LateWeights)),
    },
    'workers that stay': {**ITERS, **loaders(2, persistent_workers=True)},
    'new workers': {**ITERS, **loaders(1, persistent_workers=False)},
    'no validation': NONE,
    'hooks switched off': dict(
        default_hooks=dict(checkpoint=None, param_scheduler=None)
    ),
}


QUICK = [
    'iterations',
    'accumulation',
    'average',
    'own wrapper',
    'two nets',
    'weights drawn late',
    'workers that stay',
]


def some(cases: Iterable[Any], quick: list[Any]) -> list[Any]:
    """All cases, those that are not quick left to the soak."""
    soak = pytest.mark.soak
    return [
        one if one in quick else pytest.param(one, marks=soak) for one in cases
    ]


@pytest.mark.parametrize('name', some(EXACT, QUICK))
def test_it_is_the_stock_run_to_the_last_bit(
    name: str, tmp_path: Path
) -> None:
    stock = stock_config(**EXACT[name])
    ours, protection = protected(stock)
    assert protection.changes
    expected, first = train(stock, tmp_path / 'stock')
    found, second = train(ours, tmp_path / 'ours')
    assert found.losses == expected.losses
    assert found.rates == expected.rates
    assert_same(outcome(second), outcome(first))


@pytest.mark.soak
def test_hooks_that_look_seldom_change_nothing(tmp_path: Path) -> None:
    # mmengine waits half a second after each pass over other data.
    data = loaders(0, persistent_workers=False)
    stock = stock_config(
        **data,
        model=dict(type=named(LateWeights)),
        train_cfg=dict(by_epoch=False, max_iters=2500, val_interval=400),
        optim_wrapper=dict(optimizer=dict(SGD, lr=0.01)),
        custom_hooks=[dict(type='EMAHook', momentum=0.01)],
    )
    expected, first = train(stock, tmp_path / 'stock')
    found, second = train(protected(stock)[0], tmp_path / 'ours')
    assert found.losses == expected.losses
    assert_same(outcome(second), outcome(first))


@pytest.mark.parametrize('clip', some([1e-3, 0.5, 1e3], [0.5]))
def test_clipping_is_the_same_to_rounding(clip: float, tmp_path: Path) -> None:
    settings = wrapper(clip_grad=dict(max_norm=clip), accumulative_counts=2)
    stock = stock_config(**settings)
    expected, first = train(stock, tmp_path / 'stock')
    found, second = train(protected(stock)[0], tmp_path / 'ours')
    assert found.losses == pytest.approx(expected.losses, rel=1e-6)
    assert found.rates == expected.rates
    torch.testing.assert_close(
        outcome(second)['weights'], outcome(first)['weights']
    )


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
def test_mixed_precision_is_the_same_to_rounding(
    dtype: str, tmp_path: Path
) -> None:
    skip_without_half()
    amp = dict(type='AmpOptimWrapper', dtype=dtype, loss_scale=1024.0)
    ours = protected(stock_config(**wrapper(**amp)))[0]
    assert ours.optim_wrapper.type == 'mmstable.SafeAmpOptimWrapper'
    amp['type'] = named(CpuAmpOptimWrapper)
    expected, first = train(stock_config(**wrapper(**amp)), tmp_path / 'stock')
    found, second = train(ours, tmp_path / 'ours')
    assert found.losses == pytest.approx(expected.losses, rel=1e-6)
    torch.testing.assert_close(
        outcome(second)['weights'], outcome(first)['weights']
    )


@pytest.mark.parametrize(
    'name', some(['epochs', 'average', 'two nets'], ['average'])
)
def test_who_only_observes_changes_nothing(name: str, tmp_path: Path) -> None:
    stock = stock_config(**EXACT[name])
    ours, _ = protected(stock, 'observe_only')
    expected, first = train(stock, tmp_path / 'stock')
    found, second = train(ours, tmp_path / 'ours')
    assert type(second.train_loop) is type(first.train_loop)
    assert type(second.optim_wrapper) is type(first.optim_wrapper)
    assert found.losses == expected.losses
    assert_same(outcome(second), outcome(first))
