"""Gradients whose squares an optimizer's state can hold."""

import math

import pytest
import torch

from mmstable.numerics.state_range import largest_safe_norm, largest_squarable
from tests.toys import INF


def adam(*dtypes):
    params = [torch.nn.Parameter(torch.zeros(3, dtype=d)) for d in dtypes]
    return params, torch.optim.Adam([{'params': []}, {'params': params}])


def test_known_ranges():
    assert largest_squarable(torch.float32) == pytest.approx(1.8447e19, 1e-4)
    assert largest_squarable(torch.bfloat16) == pytest.approx(1.841e19, 1e-3)
    assert largest_squarable(torch.float16) == pytest.approx(255.94, 1e-4)


@pytest.mark.parametrize('is_stepped', [False, True])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_adam_bears_this_norm_and_not_a_hundred_times_it(dtype, is_stepped):
    for factor, is_finite in ((1.0, True), (100.0, False)):
        params, optimizer = adam(dtype)
        if is_stepped:
            params[0].grad = torch.ones_like(params[0])
            optimizer.step()
        norm = largest_safe_norm(optimizer) * factor
        grad = torch.zeros_like(params[0])
        grad[0] = 0.99 * norm
        params[0].grad = grad
        optimizer.step()
        squares = optimizer.state[params[0]]['exp_avg_sq']
        assert math.isfinite(squares[0].item()) is is_finite


def test_the_narrowest_state_counts():
    params, optimizer = adam(torch.float32, torch.float16)
    assert largest_safe_norm(optimizer) < 256
    # Once there is one, the state counts and not the parameter.
    for param in params:
        optimizer.state[param] = {
            'step': torch.tensor(0.0),
            'exp_avg_sq': torch.zeros(3),
        }
    assert largest_safe_norm(optimizer) > 1e19


def test_without_floating_point_there_is_no_bound():
    _, optimizer = adam()
    assert largest_safe_norm(optimizer) == INF
