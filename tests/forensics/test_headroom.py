"""Trends, underflow, and what is said of them, without a runner."""

from __future__ import annotations

import math
import random

import pytest
import torch

from mmstable.forensics.headroom import (
    GRADIENT,
    OUTPUT,
    Headroom,
    Place,
    SmallValues,
    Underflow,
    count_small,
    describe_low,
    describe_underflow,
    estimate_flushed,
    find_underflow,
    forecast,
)

CONV = Place('decode_head.conv_seg', OUTPUT, 'float16')
OTHER = Place('backbone.conv', OUTPUT, 'float16')


def doubling_every(iterations, share, now=1600, step=200):
    return [
        (t, math.log2(share) + (t - now) / iterations)
        for t in range(step, now + 1, step)
    ]


def test_steady_growth_is_extrapolated():
    known = forecast(doubling_every(900, 0.71))
    assert known.share == pytest.approx(0.71)
    assert known.doubling == pytest.approx(900)
    assert known.left == pytest.approx(445, abs=1)


def test_one_sample_far_off_does_not_count():
    points = doubling_every(400, 0.25)
    points[3] = (points[3][0], 5.0)
    points[-1] = (points[-1][0], -9.0)
    points[0] = (points[0][0], -30.0)
    known = forecast(points)
    assert known.doubling is None or known.doubling == pytest.approx(400, 0.3)


def test_a_spike_is_no_trend():
    flat = [(t, -8.0 + 0.01 * (t % 3)) for t in range(200, 1600, 200)]
    known = forecast([*flat, (1600, -1.0)])
    assert (known.doubling, known.left) == (None, math.inf)
    assert known.share == 0.5


@pytest.mark.parametrize('count', [1, 2, 3])
def test_a_trend_takes_four_samples(count):
    assert forecast(doubling_every(100, 0.2)[-count:]).doubling is None
    assert forecast(doubling_every(100, 0.2)[-4:]).doubling is not None


def test_noise_is_hardly_ever_a_trend():
    chance = random.Random(0)
    alarms = 0
    for _ in range(2000):
        points = [(t, -6 + chance.gauss(0, 0.4)) for t in range(0, 1600, 200)]
        alarms += forecast(points).left < 1000
    assert alarms == 0


def test_the_place_that_overflows_first_is_named_once():
    one, told = Headroom(), []
    for t in range(200, 2001, 200):
        shares = {CONV: 2.0 ** (t / 200 - 10), OTHER: 2.0 ** (t / 200 - 11)}
        told.append((t, one.warn(t, shares)))
    first = next((t, w) for t, w in told if w is not None)
    assert first[0] == 1200
    facts = first[1][1]
    assert facts['module'] == CONV.module
    assert facts['left'] == pytest.approx(800)
    # Again when half of it is gone, and no more often.
    again = [t for t, w in told if w and w[1]['module'] == CONV.module]
    assert again == [1200, 1800]


def test_what_is_high_is_told_without_growth():
    one = Headroom()
    __, facts = one.warn(200, {CONV: 0.6, OTHER: 0.4})
    assert facts['module'] == CONV.module
    assert one.warn(400, {CONV: 0.6, OTHER: 0.4}) is None


@pytest.mark.parametrize('share', [1.0, math.inf, 0.0, 1e-9])
def test_masks_and_infinities_are_not_followed(share):
    one = Headroom()
    assert one.warn(200, {CONV: share}) is None
    assert one.state_dict() == {}


def test_a_gradient_counts_at_the_smallest_scale():
    grad = Place('a', GRADIENT, 'float16')
    assert grad.share(65504.0, 1024.0, 1.0) == pytest.approx(1 / 1024)
    assert CONV.share(655.04, 1024.0, 1.0) == pytest.approx(0.01)


def test_a_resumed_run_knows_the_samples():
    whole, part, rest = Headroom(), Headroom(), Headroom()
    for t in range(200, 1801, 200):
        half = part if t <= 1200 else rest
        if t == 1400:
            rest.load_state_dict(part.state_dict())
        for one in (whole, half):
            one.warn(t, {CONV: 2.0 ** (t / 200 - 10)})
    assert rest.state_dict() == whole.state_dict()


def small_values(grad, module='m'):
    counts, total = count_small(grad)
    zeros, ones, up_to_3 = counts.tolist()
    return SmallValues(
        module, grad.numel(), total, zeros, ones, up_to_3 - zeros - ones
    )


@pytest.mark.parametrize('spread', [0.0, 1.0, 2.0, 4.0])
@pytest.mark.parametrize('size', [2.0**-26, 2.0**-24, 2.0**-22, 2.0**-16])
@pytest.mark.parametrize('masked', [False, True])
def test_flushed_gradients_are_told_from_zeros(spread, size, masked):
    torch.manual_seed(0)
    values = torch.randn(200_000, dtype=torch.float64)
    values = values * torch.exp(spread * torch.randn(200_000)) * size
    if masked:
        values[torch.rand(200_000) < 0.5] = 0
    alive = (values != 0).sum().item()
    truth = ((values != 0) & (values.half() == 0)).sum().item() / alive
    found = find_underflow([small_values(values.half())], [1.0])
    # Nothing is made up, whatever the zeros of the mask are.
    assert found.share <= truth + 0.2
    if truth > 0.3:
        assert found.share > 0.1
    elif spread <= 1:
        assert found.share == pytest.approx(truth, abs=0.05)


def test_structural_zeros_are_not_lost():
    grad = torch.randn(10_000).half()
    grad[::2] = 0
    found = find_underflow([small_values(grad)], [4.0])
    assert found.share == 0


def test_a_gradient_of_zeros_counts_if_others_fade():
    gone = small_values(torch.zeros(100).half(), 'gone')
    assert find_underflow([gone], [1e-6, 0.0]).share == 1
    assert find_underflow([gone], [0.1, 0.0]).share == 0
    assert find_underflow([], []) is None


def test_few_small_values_tell_nothing():
    assert estimate_flushed(zeros=100, ones=3, few=3) == 0


def text_of_growth():
    place, known = CONV, forecast(doubling_every(900, 0.71))
    return describe_low(1600, place, known, 0)


def test_sentences():
    assert (
        'decode_head.conv_seg output at 71 % of the fp16 range, doubling '
        'every 900 iterations; about 445 left. It will overflow: try '
        "fp32_modules=['decode_head.conv_seg']"
    ) in text_of_growth()
    lost = Underflow(0.25, 'backbone.conv', 0.5)
    text = describe_underflow(200, lost, 64.0, 16.0)
    assert 'about 25 % of the fp16 gradients are flushed to zero' in text
    assert 'room for one up to 65536.0' in text
    full = describe_underflow(200, lost, 64.0, 60000.0)
    assert 'no scale fits them all' in full


def test_the_same_in_chinese(monkeypatch):
    monkeypatch.setattr('mmstable.messages._chosen', 'zh_cn')
    text = text_of_growth()
    assert '的输出已达到 fp16 范围的 71 %，每 900 次迭代翻倍' in text
    assert '大约还剩 445 次迭代' in text
