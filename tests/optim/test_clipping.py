import pytest
import torch

from mmstable.optim.clipping import (
    ClipGroup,
    FixedLimit,
    NormClip,
    PercentileLimit,
    ValueClip,
    excess,
    parse_clip_grad,
)

INF = float('inf')


def at_most(max_norm, norm_type=2.0):
    return NormClip((ClipGroup(FixedLimit(max_norm)),), norm_type)


def test_mmengines_forms():
    assert parse_clip_grad(None) is None
    assert parse_clip_grad(dict(max_norm=35)) == at_most(35.0)
    assert parse_clip_grad(
        dict(type='norm', max_norm=1, norm_type='inf', foreach=True)
    ) == at_most(1.0, INF)
    assert parse_clip_grad(dict(type='value', clip_value=0.5)) == ValueClip(
        0.5
    )


def test_the_callers_dict_is_not_changed():
    settings = dict(type='norm', max_norm=1.0)
    parse_clip_grad(settings)
    assert settings == dict(type='norm', max_norm=1.0)


@pytest.mark.parametrize('norm', [0.0, 0.5, 2.0, 2.000001, 1e6])
def test_coefficient_is_torchs(norm):
    grad = torch.tensor([norm], dtype=torch.float64)
    param = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    param.grad = grad.clone()
    torch.nn.utils.clip_grad_norm_([param], 2.0)
    clipped = pytest.approx(param.grad.item())
    assert FixedLimit(2.0).coefficient(norm) * norm == clipped
    assert norm / excess(grad, 2.0).item() == clipped
    assert PercentileLimit().coefficient(norm) == 1.0


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        ([1], r'clip_grad: must be a dict or None, got \[1\]'),
        (dict(type='agc', x=1), '`type` must be one of norm, value, got'),
        (dict(max_nrom=1), 'no setting `max_nrom`; .* mean max_norm'),
        (dict(norm_type=2), 'needs `max_norm`'),
        (dict(), 'needs `max_norm`'),
        (dict(type='value', max_norm=1), 'no setting `max_norm`'),
        (dict(max_norm=0), '`max_norm` must be .* above 0, got 0'),
        (dict(max_norm=-1), '`max_norm` must be .* above 0, got -1'),
        (dict(max_norm=float('nan')), '`max_norm` must be .* got nan'),
        (dict(max_norm=True), '`max_norm` must be a finite .* got True'),
        (dict(max_norm='a'), "`max_norm` must be a finite .* got 'a'"),
        (
            dict(max_norm=1, norm_type=0),
            '`norm_type` must be .* got 0',
        ),
        (
            dict(max_norm=1, error_if_nonfinite=True),
            'contradicts a safe wrapper',
        ),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        parse_clip_grad(settings)
