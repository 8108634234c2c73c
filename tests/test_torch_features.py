"""A test is skipped when it calls for what torch has not, and only then."""

from __future__ import annotations

import pytest
import torch

from mmstable import SafeAmpOptimWrapper
from tests import torch_features
from tests.toys import toy_net


def half():
    net = toy_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    wrapper = SafeAmpOptimWrapper(optimizer=optimizer, dtype='float16')
    wrapper.bind_model(net)


def fused_sgd():
    torch_features.sgd(toy_net().parameters(), lr=0.1, fused=True)


def fused_adamw():
    torch.optim.AdamW(toy_net().parameters(), fused=True)


@pytest.mark.parametrize(
    ('feature', 'use', 'name'),
    [
        ('half_works_on_cpu', half, 'autocast to float16 on a CPU'),
        ('_sgd_knows_fused', fused_sgd, 'fused SGD'),
        ('fuses_on_cpu', fused_adamw, 'fused optimizers on a CPU'),
    ],
)
def test_a_missing_feature_skips_its_test(monkeypatch, feature, use, name):
    if getattr(torch_features, feature)():
        use()
    monkeypatch.setattr(torch_features, feature, lambda: False)
    torch_features.guard_missing(monkeypatch)
    with pytest.raises(pytest.skip.Exception, match=f'has no {name}'):
        use()
    torch.optim.AdamW(toy_net().parameters(), fused=False)


def test_a_missing_grad_scaler_skips_its_test(monkeypatch):
    monkeypatch.delattr(torch.amp, 'GradScaler', raising=False)
    torch_features.guard_missing(monkeypatch)
    with pytest.raises(pytest.skip.Exception, match='has no GradScaler'):
        torch.amp.GradScaler('cpu')
