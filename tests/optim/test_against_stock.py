"""Healthy training ends where stock mmengine and torch end."""

import pytest
import torch
from mmengine.optim import AmpOptimWrapper, OptimWrapper

from mmstable import SafeAmpOptimWrapper, SafeOptimWrapper
from tests.torch_features import sgd
from tests.toys import toy_batch, toy_net


def optimizer_of(net, kind, fused):
    if kind == 'sgd':
        return sgd(net.parameters(), lr=0.1, momentum=0.9, fused=fused)
    return torch.optim.AdamW(net.parameters(), lr=0.01, fused=fused)


def run(net, wrapper, steps=12):
    wrapper.initialize_count_status(net, 0, steps)
    for index in range(steps):
        x, y = toy_batch(index)
        with wrapper.optim_context(net):
            loss = (net(x).float() - y).square().mean()
        wrapper.update_params(loss)
    return torch.cat([p.detach().flatten() for p in net.parameters()])


@pytest.mark.parametrize(
    'clip',
    [
        None,
        dict(max_norm=0.3),
        dict(max_norm=0.3, norm_type=1),
        dict(max_norm=0.3, norm_type='inf'),
        dict(type='value', clip_value=0.02),
    ],
)
@pytest.mark.parametrize('counts', [1, 3])
@pytest.mark.parametrize('fused', [False, True])
@pytest.mark.parametrize('kind', ['sgd', 'adamw'])
def test_fp32_equals_mmengines_wrapper(kind, fused, counts, clip):
    # Twelve iterations are no multiple of five: the last window is shorter.
    ours, theirs = toy_net(), toy_net()
    expected = run(
        theirs,
        OptimWrapper(
            optimizer_of(theirs, kind, fused), counts, clip and dict(clip)
        ),
        steps=11,
    )
    actual = run(
        ours,
        SafeOptimWrapper(optimizer_of(ours, kind, fused), counts, clip),
        steps=11,
    )
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


class CpuAmpOptimWrapper(AmpOptimWrapper):
    """mmengine's own step, on torch's CPU scaler and autocast."""

    def __init__(self, init_scale, **kwargs):
        OptimWrapper.__init__(self, **kwargs)
        self.loss_scaler = torch.amp.GradScaler('cpu', init_scale=init_scale)
        self._scale_update_param = None

    def optim_context(self, model):
        return torch.autocast('cpu', dtype=torch.float16)


@pytest.mark.parametrize('clip', [None, dict(max_norm=0.3)])
@pytest.mark.parametrize('fused', [False, True])
@pytest.mark.parametrize('kind', ['sgd', 'adamw'])
@pytest.mark.parametrize('scale', [1024.0, 2.0**24])
def test_fp16_equals_mmengines_wrapper(scale, kind, fused, clip):
    # The larger scale overflows some times before it fits. If that happens
    # in its first step, stock fused SGD goes on with uninitialised momentum.
    ours, theirs = toy_net(), toy_net()
    stock = CpuAmpOptimWrapper(
        scale,
        optimizer=optimizer_of(theirs, kind, fused and kind != 'sgd'),
        clip_grad=clip and dict(clip),
    )
    safe = SafeAmpOptimWrapper(
        optimizer=optimizer_of(ours, kind, fused),
        clip_grad=clip,
        loss_scale=scale,
    )
    torch.testing.assert_close(
        run(ours, safe), run(theirs, stock), rtol=1e-4, atol=1e-5
    )
    assert safe.loss_scaler.get_scale() == stock.loss_scaler.get_scale()
    assert safe.skipped_steps > 0 or scale == 1024.0


def test_it_is_an_amp_wrapper():
    net = toy_net()
    wrapper = SafeAmpOptimWrapper(
        optimizer=optimizer_of(net, 'sgd', False), loss_scale=512
    )
    assert isinstance(wrapper, AmpOptimWrapper)
    assert wrapper.cast_dtype is torch.float16
    assert wrapper.loss_scaler.get_scale() == 512.0


def test_autocast_really_runs_in_the_dtype():
    for dtype in (torch.float16, torch.bfloat16):
        net = toy_net()
        wrapper = SafeAmpOptimWrapper(
            optimizer=optimizer_of(net, 'sgd', False), dtype=dtype
        )
        with wrapper.optim_context(net):
            assert net(toy_batch(0)[0]).dtype is dtype
    net = toy_net()
    wrapper = SafeAmpOptimWrapper(
        optimizer=optimizer_of(net, 'sgd', False), dtype='float32'
    )
    with wrapper.optim_context(net):
        assert net(toy_batch(0)[0]).dtype is torch.float32
    assert not wrapper.loss_scaler.is_enabled()


@pytest.mark.parametrize('dtype', ['half', 'int8', torch.int8, 3])
def test_bad_dtype(dtype):
    with pytest.raises(ValueError, match='`dtype` must be one of'):
        SafeAmpOptimWrapper(
            optimizer=optimizer_of(toy_net(), 'sgd', False), dtype=dtype
        )


def test_bf16_pays_for_no_scaling():
    net = toy_net()
    wrapper = SafeAmpOptimWrapper(
        optimizer=optimizer_of(net, 'sgd', False), dtype='bfloat16'
    )
    loss = net(toy_batch(0)[0]).sum()
    assert wrapper.loss_scaler.scale(loss) is loss
    assert 'loss_scaler' not in wrapper.state_dict()
