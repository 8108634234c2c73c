"""float16 on a CPU whose torch cannot autocast to it."""

from __future__ import annotations

import pytest
import torch

from mmstable import SafeAmpOptimWrapper
from mmstable.errors import ConfigError
from mmstable.optim import wrapper
from tests.torch_features import half_works_on_cpu
from tests.toys import toy_net

LINE = r"torch .* cannot autocast to float16 on a CPU: set `dtype='bfloat16'`"


def bind(dtype):
    net = toy_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    wrapper = SafeAmpOptimWrapper(optimizer=optimizer, dtype=dtype)
    wrapper.bind_model(net)


@pytest.fixture
def old_torch(monkeypatch):
    monkeypatch.setattr(wrapper, '_half_works_on_cpu', lambda: False)


def test_an_old_torch_is_offered_bfloat16(old_torch):
    with pytest.raises(ConfigError, match=LINE):
        bind('float16')


@pytest.mark.parametrize('dtype', ['bfloat16', 'float32'])
def test_other_types_are_not_refused(old_torch, dtype):
    bind(dtype)


def test_the_answer_is_what_torch_does(monkeypatch):
    half_works_on_cpu.cache_clear()
    name = '_half_works_on_cpu'
    monkeypatch.setattr(wrapper, name, half_works_on_cpu)
    if not half_works_on_cpu():
        with pytest.raises(ConfigError, match=LINE):
            bind('float16')
        return
    with torch.autocast('cpu', dtype=torch.float16):
        product = torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    assert product.dtype is torch.float16
