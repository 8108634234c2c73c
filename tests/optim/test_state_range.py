"""Gradients whose squares an optimizer's state can hold."""

import math

import pytest
import torch

from mmstable.optim.update import (
    largest_safe_norm,
    largest_squarable,
    overflows_state,
)
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


HALF = torch.float16


def run_adam(values, dtype=HALF, **kwargs):
    """Whether each step is found to overflow, and does."""
    param = torch.nn.Parameter(torch.zeros(2, dtype=dtype))
    optimizer = torch.optim.AdamW([param], eps=1e-4, **kwargs)
    for value in values:
        param.grad = torch.tensor([value, 1.0], dtype=dtype)
        found = overflows_state(optimizer, [param], [param.grad], 1.0)
        optimizer.step()
        squares = optimizer.state[param]['exp_avg_sq']
        yield found, not squares.isfinite().all().item()


@pytest.mark.parametrize('value', [200.0, 300.0, 3000.0, 8000.0, 9000.0])
def test_the_new_square_counts_by_its_share(value):
    ((found, overflows),) = run_adam([value])
    assert found == overflows == (value > 8093)


def test_what_the_state_has_gathered_counts():
    steps = list(run_adam([3000.0] * 20))
    first = [overflows for _, overflows in steps].index(True)
    assert 3 < first < 15
    assert [found for found, _ in steps[: first + 1]] == [False] * first + [
        True
    ]


def test_the_largest_of_state_and_gradient_may_be_apart():
    param = torch.nn.Parameter(torch.zeros(2, dtype=HALF))
    optimizer = torch.optim.Adam([param], eps=1e-4)
    param.grad = torch.tensor([7900.0, 0.0], dtype=HALF)
    optimizer.step()
    for values, found in (([0.0, 7900.0], False), ([7900.0, 0.0], True)):
        grad = torch.tensor(values, dtype=HALF)
        assert overflows_state(optimizer, [param], [grad], 1.0) is found


class Lion(torch.optim.Optimizer):
    """Keeps no squares, though it has betas."""

    def __init__(self, params):
        super().__init__(params, dict(lr=1e-3, betas=(0.9, 0.99)))


@pytest.mark.parametrize(
    ('cls', 'is_bounded'),
    [
        (Lion, False),
        (torch.optim.SGD, False),
        (torch.optim.Adamax, False),
        (torch.optim.RMSprop, True),
        (torch.optim.Adagrad, True),
        (torch.optim.Adadelta, True),
        (type('Own', (torch.optim.Adam,), {}), True),
    ],
)
def test_only_known_optimizers_have_a_bound(cls, is_bounded):
    param = torch.nn.Parameter(torch.zeros(2))
    optimizer = cls([param])
    assert (largest_safe_norm(optimizer) < INF) is is_bounded
    grad = torch.tensor([1e25, 0.0])
    assert overflows_state(optimizer, [param], [grad], 1.0) is is_bounded


def test_sparse_gradients_are_looked_at_in_their_places():
    param = torch.nn.Parameter(torch.zeros(3, 1, dtype=torch.float64))
    optimizer = torch.optim.SparseAdam([param])
    values = torch.tensor([[1e100]], dtype=torch.float64)
    grad = torch.sparse_coo_tensor([[1]], values, (3, 1)).coalesce()
    param.grad = grad
    optimizer.step()
    assert not overflows_state(optimizer, [param], [grad], 1e53)
    assert overflows_state(optimizer, [param], [grad], 1e56)
