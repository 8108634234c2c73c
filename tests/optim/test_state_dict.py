"""States go from wrapper to wrapper, ours and mmengine's, both ways."""

import copy
import logging

import pytest
import torch
from mmengine.optim import OptimWrapper

from mmstable import SafeAmpOptimWrapper, SafeOptimWrapper
from tests.optim.test_against_stock import CpuAmpOptimWrapper, run
from tests.toys import assert_same, spoiled, toy_batch, toy_net


def adamw(net, fused):
    return torch.optim.AdamW(net.parameters(), lr=0.01, fused=fused)


def make(kind, fused=True, net=None):
    net = net or toy_net()
    optimizer = adamw(net, fused)
    if kind == 'stock':
        return net, OptimWrapper(optimizer)
    if kind == 'stock_amp':
        return net, CpuAmpOptimWrapper(256.0, optimizer=optimizer)
    if kind == 'safe':
        return net, SafeOptimWrapper(optimizer)
    return net, SafeAmpOptimWrapper(optimizer=optimizer, loss_scale=64.0)


KINDS = ['stock', 'stock_amp', 'safe', 'safe_amp']


@pytest.mark.parametrize('fused_to', [False, True])
@pytest.mark.parametrize('fused_from', [False, True])
@pytest.mark.parametrize('target', KINDS)
@pytest.mark.parametrize('source', KINDS)
def test_any_state_loads(source, target, fused_from, fused_to):
    if not target.startswith('safe'):
        # mmengine's let the checkpoint choose the kernel.
        fused_to = fused_from
    net, wrapper = make(source, fused_from)
    run(net, wrapper, steps=3)
    # Checkpoints are copies: a state dict shares memory with its optimizer.
    state = copy.deepcopy(wrapper.state_dict())
    if not target.startswith('safe'):
        state_for_target = copy.deepcopy(state)
    else:
        state_for_target = state
    original = copy.deepcopy(state)
    other_net, other = make(target, fused_to)
    other_net.load_state_dict(net.state_dict())
    other.load_state_dict(state_for_target)
    assert_same(state, original)
    if target.startswith('safe'):
        assert other.optimizer.param_groups[0]['fused'] is fused_to
    if source.endswith('amp') and target.endswith('amp'):
        assert other.loss_scaler.get_scale() == (
            256.0 if source == 'stock_amp' else 64.0
        )
    run(other_net, other, steps=3)


def test_a_resume_half_way_ends_as_an_unbroken_run():
    def train(net, wrapper, indices):
        for index in indices:
            x, y = toy_batch(index)
            name = 'head.weight' if index in (1, 5) else None
            with wrapper.optim_context(net):
                loss = (net(x).float() - y).square().mean()
            with spoiled(net, name, float('inf')):
                wrapper.update_params(loss)

    def make_wrapper(net):
        return SafeAmpOptimWrapper(
            optimizer=adamw(net, True),
            loss_scale=dict(init_scale=64.0, growth_interval=4, hysteresis=2),
            clip_grad=dict(max_norm=1.0),
        )

    net = toy_net()
    wrapper = make_wrapper(net)
    train(net, wrapper, range(10))
    half = toy_net()
    first = make_wrapper(half)
    train(half, first, range(4))
    state = copy.deepcopy(first.state_dict())
    second = make_wrapper(half)
    second.load_state_dict(state)
    train(half, second, range(4, 10))
    assert_same(half.state_dict(), net.state_dict())
    assert_same(second.state_dict(), wrapper.state_dict())
    assert second.skipped_steps == 2


def test_settings_of_the_config_win_and_that_is_said(capture_log):
    net, wrapper = make('safe_amp')
    run(net, wrapper, steps=2)
    other = SafeAmpOptimWrapper(
        optimizer=adamw(net, True),
        loss_scale=dict(init_scale=8.0, max_scale=32.0),
    )
    with capture_log(logging.WARNING) as lines:
        other.load_state_dict(wrapper.state_dict())
    assert other.loss_scaler.get_scale() == 32.0
    assert any(
        'max_scale 16777216.0 in the checkpoint, 32.0 configured' in line
        for line in lines
    )


def test_a_mismatch_is_torchs_own_error():
    net, wrapper = make('safe')
    optimizer = torch.optim.AdamW(
        [dict(params=[net.head.weight]), dict(params=[net.head.bias])]
    )
    other = SafeOptimWrapper(optimizer)
    with pytest.raises(ValueError, match='different number of parameter'):
        other.load_state_dict(wrapper.state_dict())
