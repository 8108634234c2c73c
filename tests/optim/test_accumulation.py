"""Windows of several iterations, with and without bad ones."""

import pytest
import torch

from mmstable import Fault, SafeAmpOptimWrapper, SafeOptimWrapper
from tests.torch_features import sgd
from tests.toys import INF, NAN, spoiled, toy_batch, toy_net

CLIP = dict(max_norm=0.3)


def loss_of(net, index):
    x, y = toy_batch(index)
    return (net(x).float() - y).square().mean()


def optimizer_of(net, fused=False):
    return sgd(net.parameters(), lr=0.1, momentum=0.9, fused=fused)


def plain_step(net, optimizer, indices):
    """What a window means: the average of the losses that count."""
    sum(loss_of(net, i) for i in indices).div(len(indices)).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), **CLIP)
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize('fused', [False, True])
@pytest.mark.parametrize('precision', ['float32', 'float16'])
def test_a_bad_loss_costs_only_its_own_iteration(precision, fused):
    net, reference = toy_net(), toy_net()
    optimizer = optimizer_of(net, fused)
    if precision == 'float32':
        wrapper = SafeOptimWrapper(optimizer, 3, CLIP)
    else:
        wrapper = SafeAmpOptimWrapper(
            optimizer=optimizer, accumulative_counts=3, clip_grad=CLIP
        )
    # Three windows and a remainder of two; iterations 1, 5, 6, 10 are bad.
    wrapper.initialize_count_status(net, 0, 11)
    reports = []
    for index in range(11):
        loss = loss_of(net, index)
        if index in (1, 5, 6, 10):
            loss = loss * NAN
        wrapper.update_params(loss)
        if (index + 1) % 3 == 0 or index == 10:
            reports.append(wrapper.last_step)
    plain = optimizer_of(reference)
    for window in ([0, 2], [3, 4], [7, 8], [9]):
        plain_step(reference, plain, window)
    assert [r.applied for r in reports] == [True] * 4
    assert [r.dropped_micro_batches for r in reports] == [1, 1, 1, 1]
    assert [r.iteration for r in reports] == [3, 6, 9, 11]
    for ours, theirs in zip(net.parameters(), reference.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_window_with_nothing_left_is_a_skip():
    net = toy_net()
    wrapper = SafeAmpOptimWrapper(
        optimizer=optimizer_of(net), accumulative_counts=2, loss_scale=64.0
    )
    before = net.head.weight.detach().clone()
    for index in range(2):
        wrapper.update_params(loss_of(net, index) * NAN)
    report = wrapper.last_step
    assert report.fault is Fault.NAN_LOSS
    assert report.dropped_micro_batches == 2
    assert (report.loss_scale, report.next_loss_scale) == (64.0, 64.0)
    assert torch.equal(net.head.weight, before)
    wrapper.update_params(loss_of(net, 2))
    wrapper.update_params(loss_of(net, 3))
    assert wrapper.last_step.applied
    assert wrapper.last_step.dropped_micro_batches == 0


@pytest.mark.parametrize('fused', [False, True])
def test_a_bad_gradient_costs_the_window(fused):
    net, reference = toy_net(), toy_net()
    wrapper = SafeOptimWrapper(optimizer_of(net, fused), 3, CLIP)
    for index in range(9):
        name = 'head.bias' if index == 4 else None
        with spoiled(net, name, INF):
            wrapper.update_params(loss_of(net, index))
    plain = optimizer_of(reference)
    for window in ([0, 1, 2], [6, 7, 8]):
        plain_step(reference, plain, window)
    assert (wrapper.applied_steps, wrapper.skipped_steps) == (2, 1)
    for ours, theirs in zip(net.parameters(), reference.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
