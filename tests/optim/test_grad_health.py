import math

import pytest
import torch

from mmstable.optim.grad_health import (
    find_nonfinite,
    flag_unless,
    gradient_norms,
    total_norm,
    wide_total_norm,
    within,
)

INF, NAN = float('inf'), float('nan')


def grads_of(dtype=torch.float32):
    torch.manual_seed(0)
    return [
        torch.randn(shape, dtype=torch.float32).to(dtype)
        for shape in [(3, 5), (7,), (2, 3, 4, 4), ()]
    ]


@pytest.mark.parametrize('norm_type', [1, 2, 3, INF])
@pytest.mark.parametrize(
    'dtype', [torch.float32, torch.float64, torch.float16, torch.bfloat16]
)
def test_norms_equal_torchs(dtype, norm_type):
    grads = grads_of(dtype)
    expected = [
        torch.linalg.vector_norm(g.double(), norm_type).item() for g in grads
    ]
    norms = gradient_norms(grads, norm_type)
    assert norms.tolist() == pytest.approx(expected, rel=1e-6)
    total = total_norm(norms, norm_type).item()
    assert total == pytest.approx(
        torch.linalg.vector_norm(
            torch.cat([g.double().flatten() for g in grads]), norm_type
        ).item(),
        rel=1e-6,
    )


def test_mixed_dtypes_keep_their_order():
    grads = [torch.ones(4), torch.ones(9).double(), torch.ones(16).half()]
    norms = gradient_norms(grads)
    assert norms.tolist() == [2.0, 3.0, 4.0]
    assert norms.dtype == torch.float64


def test_memory_layouts():
    image = torch.randn(2, 3, 4, 5)
    strided = torch.randn(8, 8)[:, ::2]
    last = image.to(memory_format=torch.channels_last)
    expected = [torch.linalg.vector_norm(g).item() for g in (last, strided)]
    assert gradient_norms([last, strided]).tolist() == pytest.approx(expected)


def test_sparse_gradient():
    sparse = torch.tensor([3.0, 0.0, 4.0]).to_sparse()
    assert gradient_norms([sparse]).tolist() == [5.0]


@pytest.mark.parametrize('bad', [NAN, INF, -INF])
@pytest.mark.parametrize('norm_type', [1, 2, INF])
@pytest.mark.parametrize(
    'dtype', [torch.float32, torch.float64, torch.float16, torch.bfloat16]
)
def test_one_bad_value_spoils_its_norm_and_the_total(bad, norm_type, dtype):
    grads = grads_of(dtype)
    grads[2].view(-1)[5] = bad
    norms = gradient_norms(grads, norm_type)
    assert [math.isfinite(n) for n in norms] == [True, True, False, True]
    assert not within(total_norm(norms, norm_type), INF)
    kind = 'NaN' if math.isnan(bad) else 'Inf'
    assert find_nonfinite(grads, norms.tolist()) == {2: kind}


def test_a_huge_finite_gradient_is_no_culprit():
    grads = [torch.ones(2), torch.full((4,), 1e30)]
    norms = gradient_norms(grads)
    assert math.isinf(norms[1])
    assert find_nonfinite(grads, norms.tolist()) == {}
    assert wide_total_norm(grads).item() == pytest.approx(2e30)


def test_half_precision_norms_do_not_overflow():
    grads = [torch.full((4,), 60000.0).half()]
    assert gradient_norms(grads).tolist() == pytest.approx(
        [120000.0], rel=1e-3
    )


@pytest.mark.parametrize(
    ('value', 'limit', 'flag'),
    [
        (3e38, INF, 0.0),
        (2.0, 2.0, 0.0),
        (2.1, 2.0, 1.0),
        (-5.0, 2.0, 0.0),
        (INF, INF, 1.0),
        (INF, 1e300, 1.0),
        (NAN, INF, 1.0),
        (1.0, 1e300, 0.0),
    ],
)
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_the_flag_of_a_value(value, limit, flag, dtype):
    good = within(torch.tensor(value, dtype=dtype), limit)
    found = flag_unless(good)
    assert (found.item(), found.dtype) == (flag, torch.float32)
