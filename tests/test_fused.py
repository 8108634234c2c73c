"""Optimizers that are fused wherever torch can fuse them."""

from __future__ import annotations

import pytest
import torch
from mmengine.optim import build_optim_wrapper
from torch import nn

from mmstable.optim import fused
from mmstable.registry import OPTIMIZERS


@pytest.mark.parametrize(
    ('name', 'cls'),
    [('FusedAdamW', torch.optim.AdamW), ('FusedSGD', torch.optim.SGD)],
)
def test_fuses_where_torch_can(name: str, cls: type) -> None:
    cfg = dict(
        type='OptimWrapper', optimizer=dict(type=f'mmstable.{name}', lr=0.5)
    )
    optimizer = build_optim_wrapper(nn.Linear(2, 2), cfg).optimizer
    assert type(optimizer) is cls
    assert optimizer.defaults['lr'] == 0.5
    can = 'cpu' in fused._fused_devices()
    assert bool(optimizer.defaults.get('fused')) is can


def test_keeps_groups_of_paramwise_settings() -> None:
    cfg = dict(
        type='OptimWrapper',
        optimizer=dict(type='mmstable.FusedAdamW', lr=1.0, weight_decay=0.1),
        paramwise_cfg=dict(bias_decay_mult=0.0),
    )
    groups = build_optim_wrapper(nn.Linear(2, 2), cfg).optimizer.param_groups
    assert [group['weight_decay'] for group in groups] == [0.1, 0.0]


def test_takes_groups_of_generators_and_named_pairs() -> None:
    model = nn.Linear(2, 2)
    groups = [dict(params=model.parameters())]
    assert fused.FusedSGD(groups, lr=0.1).param_groups[0]['params']
    assert fused._tensors(list(model.named_parameters())) == [
        model.weight,
        model.bias,
    ]


def test_falls_back_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    monkeypatch.setattr(fused, '_fused_devices', lambda: ['cuda'])
    monkeypatch.setattr(
        fused, 'print_log', lambda text, **_: said.append(text)
    )
    optimizer = fused.FusedAdamW(nn.Linear(2, 2).parameters(), lr=0.1)
    assert not optimizer.defaults.get('fused')
    assert said == [
        f'AdamW is not fused: torch {torch.__version__} cannot fuse on '
        "device 'cpu'."
    ]


@pytest.mark.parametrize('choice', [dict(fused=False), dict(foreach=True)])
def test_obeys_an_explicit_choice(choice: dict[str, bool]) -> None:
    params = nn.Linear(2, 2).parameters()
    assert not fused.FusedAdamW(params, **choice).defaults['fused']


def test_is_registered_by_its_scope_only() -> None:
    assert OPTIMIZERS.get('mmstable.FusedAdamW') is fused.FusedAdamW
    assert 'FusedAdamW' not in OPTIMIZERS.root.module_dict
