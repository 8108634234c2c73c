"""Running statistics after a bad step are those from before it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mmstable import SafeAmpOptimWrapper, SafeOptimWrapper
from mmstable.events import Fault
from tests.toys import INF, NAN, assert_same, spoiled, weights


class NormNet(nn.Module):
    """BatchNorm, a large table, and a statistic that is bound anew."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 2)
        self.register_buffer('level', torch.zeros(1))
        self.register_buffer('table', torch.arange(2.0**17))
        self.register_buffer('nothing', None)

    def forward(self, x):
        x = self.first(x)
        self.level = 0.9 * self.level + x.detach().mean()
        return self.last(self.norm(x).relu())


def net() -> NormNet:
    torch.manual_seed(0)
    return NormNet()


def batch(index: int) -> torch.Tensor:
    return torch.randn(
        8, 4, generator=torch.Generator().manual_seed(100 + index)
    )


def wrap(model: nn.Module, **kwargs) -> SafeOptimWrapper:
    return SafeOptimWrapper(torch.optim.SGD(model.parameters(), 0.1), **kwargs)


def iterate(model, wrapper, x, grad=None):
    with wrapper.optim_context(model):
        loss = model(x).square().mean()
    with spoiled(model, grad, NAN):
        wrapper.update_params(loss)
    return wrapper.last_step


def trained(batches, **kwargs):
    model = net()
    wrapper = wrap(model, **kwargs)
    for x in batches:
        iterate(model, wrapper, x)
    return model, wrapper


@pytest.mark.parametrize('value', [NAN, INF])
def test_a_bad_batch_leaves_no_trace(value):
    bad = batch(1)
    bad[0, 0] = value
    model, wrapper = trained([batch(0), bad, batch(2)])
    reference, _ = trained([batch(0), batch(2)])
    assert wrapper.skipped_steps == 1
    assert_same(weights(model), weights(reference))
    model.eval(), reference.eval()
    assert torch.equal(model(batch(3)), reference(batch(3)))


def test_a_bad_gradient_leaves_no_trace_either():
    model = net()
    wrapper = wrap(model)
    iterate(model, wrapper, batch(0))
    iterate(model, wrapper, batch(1), grad='last.weight')
    assert wrapper.last_step.fault is Fault.NAN_GRAD
    reference, _ = trained([batch(0)])
    assert_same(weights(model), weights(reference))


def test_without_protection_the_statistics_are_spoiled():
    bad = batch(1)
    bad[0, 0] = NAN
    model, _ = trained([batch(0), bad], protect_buffers=False)
    assert not torch.isfinite(model.norm.running_mean).all()


def test_in_a_window_only_the_dropped_iteration_is_undone():
    bad = batch(1)
    bad[0, 0] = NAN
    model = net()
    wrapper = wrap(model, accumulative_counts=3)
    wrapper.initialize_count_status(model, 0, 6)
    for x in (batch(0), bad, batch(2)):
        iterate(model, wrapper, x)
    reference = net()
    for index in (0, 2):
        reference(batch(index))
    assert wrapper.last_step.applied
    assert wrapper.last_step.dropped_micro_batches == 1
    assert_same(dict(model.named_buffers()), dict(reference.named_buffers()))


def test_a_window_that_is_skipped_is_undone_as_a_whole():
    model = net()
    wrapper = wrap(model, accumulative_counts=2)
    wrapper.initialize_count_status(model, 0, 6)
    before = weights(model)
    iterate(model, wrapper, batch(0))
    assert iterate(model, wrapper, batch(1), grad='last.weight').skipped
    assert_same(weights(model), before)


def test_a_window_with_nothing_left_is_undone_as_a_whole():
    model = net()
    wrapper = wrap(model, accumulative_counts=2)
    wrapper.initialize_count_status(model, 0, 6)
    before = weights(model)
    for _ in range(2):
        iterate(model, wrapper, torch.full((8, 4), NAN))
    assert wrapper.last_step.skipped
    assert wrapper.last_step.fault is Fault.NAN_LOSS
    assert_same(weights(model), before)


def test_a_changed_table_is_put_back_although_it_is_large():
    model = net()
    wrapper = wrap(model)
    for index in range(2):
        iterate(model, wrapper, batch(index))
    with wrapper.optim_context(model):
        model.table.mul_(2)
        loss = model(batch(2)).mean() * NAN
    wrapper.update_params(loss)
    assert torch.equal(model.table, torch.arange(2.0**17))


def test_the_object_of_a_buffer_that_is_bound_anew_comes_back():
    model = net()
    wrapper = wrap(model)
    iterate(model, wrapper, batch(0))
    before = model.level
    iterate(model, wrapper, torch.full((8, 4), NAN))
    assert model.level is before
    assert torch.isfinite(before).all()


def test_the_whole_model_is_protected_if_the_wrapper_has_been_introduced():
    whole = nn.ModuleDict(dict(a=net(), b=nn.BatchNorm1d(4)))
    wrapper = wrap(whole['a'])
    wrapper.bind_model(whole)
    with wrapper.optim_context(whole['a']):
        loss = whole['a'](whole['b'](torch.full((8, 4), INF))).mean()
    wrapper.update_params(loss)
    assert torch.isfinite(whole['b'].running_mean).all()


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
def test_mixed_precision_is_protected_too(dtype):
    model = net()
    wrapper = SafeAmpOptimWrapper(
        optimizer=torch.optim.SGD(model.parameters(), 0.1), dtype=dtype
    )
    before = weights(model)
    assert iterate(model, wrapper, torch.full((8, 4), INF)).skipped
    assert_same(weights(model), before)


class Odd(nn.Module):
    """A buffer that a forward pass treats in an odd way."""

    def __init__(self, buffer, change) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer('odd', buffer)
        self.change = change

    def forward(self, x):
        self.change(self)
        return self.linear(x)


def add_behind_torchs_back(module):
    module.odd.data.add_(1)


def grow(module):
    module.odd.data = torch.zeros(len(module.odd) + 1)


def bind(module):
    module.odd = torch.ones(3)


def nothing(module):
    pass


@pytest.mark.parametrize(
    ('buffer', 'change', 'expected'),
    [
        (
            torch.zeros(70000),
            add_behind_torchs_back,
            torch.full((70000,), 2.0),
        ),
        (torch.zeros(2), grow, torch.zeros(4)),
        (None, nothing, None),
        (torch.ones(1, 1).expand(3, 3), nothing, torch.ones(3, 3)),
        (torch.eye(3).to_sparse_csr(), nothing, torch.eye(3).to_sparse_csr()),
    ],
    ids=['data', 'grow', 'none', 'expanded', 'csr'],
)
def test_odd_buffers_are_put_back_too(buffer, change, expected):
    model = Odd(buffer, change)
    wrapper = wrap(model)
    for index in range(2):
        iterate(model, wrapper, batch(index))
    assert iterate(model, wrapper, torch.full((8, 4), NAN)).skipped
    if expected is None:
        assert model.odd is None
    else:
        assert torch.equal(model.odd.to_dense(), expected.to_dense())
    assert iterate(model, wrapper, batch(3)).applied


def test_a_buffer_that_a_bad_batch_has_made_is_gone_again():
    model = Odd(None, bind)
    wrapper = wrap(model)
    assert iterate(model, wrapper, torch.full((8, 4), NAN)).skipped
    assert model.odd is None


def test_a_buffer_of_inference_mode_is_put_back():
    with torch.inference_mode():
        buffer = torch.ones(2)
    model = Odd(buffer, bind)
    wrapper = wrap(model)
    assert iterate(model, wrapper, torch.full((8, 4), NAN)).skipped
    assert torch.equal(model.odd, torch.ones(2))
