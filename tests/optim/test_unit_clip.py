"""Units, and gradients that are large against their weights."""

import pytest
import torch

from mmstable.optim.clipping import UnitClip, unit_norms


def clipped(param, grad, grad_scale=1.0, **settings):
    UnitClip(**settings).shrink_(['a.b'], [param], [grad], grad_scale)
    return grad


@pytest.mark.parametrize(
    ('shape', 'norms'),
    [
        ((), ()),
        ((6,), ()),
        ((6, 1), ()),
        ((1, 6, 1, 1), ()),
        ((4, 6), (4, 1)),
        ((4, 1, 3, 3), (4, 1, 1, 1)),
        ((2, 3, 4), (2, 1, 1)),
    ],
)
def test_which_units_a_tensor_has(shape, norms):
    tensor = torch.randn(shape)
    assert unit_norms(tensor).shape == norms
    assert torch.equal(
        unit_norms(tensor).square().sum().isclose(tensor.square().sum()),
        torch.tensor(True),
    )


def test_a_bias_with_one_zero_is_clipped_as_a_whole():
    bias, grad = torch.tensor([3.0, 0.0, 4.0]), torch.tensor([0.3, 0.4, 0.0])
    expected = grad * (0.01 * 5.0 / 0.5)
    torch.testing.assert_close(clipped(bias, grad), expected)


@pytest.mark.parametrize('shape', [(4096,), (2, 2048)])
@pytest.mark.parametrize('grad_scale', [1.0, 1024.0])
def test_norms_that_half_precision_cannot_hold(shape, grad_scale):
    param = torch.ones(shape, dtype=torch.float16)
    grad = torch.full(shape, 6e4, dtype=torch.float16)
    actual = clipped(param, grad, grad_scale).float() / grad_scale
    # The same share of every weight.
    torch.testing.assert_close(actual, 0.01 * param.float(), rtol=1e-3, atol=0)


def test_small_gradients_and_excluded_ones_stay():
    grad = torch.full((3,), 1e-3)
    assert clipped(torch.ones(3), grad.clone()).equal(grad)
    large = torch.full((3,), 1e3)
    assert clipped(torch.ones(3), large.clone(), exclude=('a',)).equal(large)
