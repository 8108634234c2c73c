"""Steps on an accelerator: the verdict is read after the fact.

The device is simulated: the step is told that its verdict is not on the host.
"""

import pytest
import torch
from mmengine.logging import MessageHub

from mmstable import SafeAmpOptimWrapper, SafeOptimWrapper
from mmstable.optim.clipping import parse_clip
from mmstable.optim.pending_step import PendingStep
from tests.toys import INF, NAN, assert_same, spoiled, toy_batch, toy_net


@pytest.fixture(autouse=True)
def accelerator(monkeypatch):
    monkeypatch.setattr(PendingStep, 'is_on_host', False)


def make(cls=SafeAmpOptimWrapper, **kwargs):
    net = toy_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, fused=True)
    wrapper = cls(optimizer=optimizer, clip_grad=dict(max_norm=0.1), **kwargs)
    wrapper.message_hub = MessageHub.get_instance(str(id(wrapper)))
    return net, wrapper


def train(net, wrapper, index, name=None, value=0.0):
    x, y = toy_batch(index)
    with wrapper.optim_context(net):
        loss = (net(x).float() - y).square().mean()
    with spoiled(net, name, value):
        wrapper.update_params(loss)


def is_unread(wrapper):
    return wrapper._pending is not None


def test_ends_as_a_run_that_reads_at_once(monkeypatch):
    faults = {2: ('head.weight', NAN), 3: ('norm.bias', INF), 6: (None, 0.0)}

    def run():
        net, wrapper = make(loss_scale=256.0)
        reports = []
        for index in range(8):
            train(net, wrapper, index, *faults.get(index, ()))
            reports.append(wrapper.last_step)
        return net.state_dict(), wrapper.state_dict(), reports

    late = run()
    monkeypatch.setattr(PendingStep, 'is_on_host', True)
    assert_same(late, run())


def test_the_first_step_is_not_run_ahead():
    net, wrapper = make()
    train(net, wrapper, 0)
    assert not is_unread(wrapper)
    train(net, wrapper, 1)
    assert is_unread(wrapper)


@pytest.mark.parametrize(
    'read',
    [
        lambda net, w: w.last_step,
        lambda net, w: w.skipped_steps,
        lambda net, w: w.applied_steps,
        lambda net, w: w.state_dict(),
        lambda net, w: w.optim_context(net).__enter__(),
        lambda net, w: w.backward(net(toy_batch(0)[0]).sum()),
        lambda net, w: w.step(),
        lambda net, w: w.zero_grad(set_to_none=False),
    ],
)
def test_whoever_needs_the_verdict_reads_it(read):
    net, wrapper = make(loss_scale=256.0)
    train(net, wrapper, 0)
    train(net, wrapper, 1, 'head.weight', INF)
    assert is_unread(wrapper)
    assert wrapper.loss_scaler.get_scale() == 256.0
    read(net, wrapper)
    assert not is_unread(wrapper)
    assert wrapper.loss_scaler.get_scale() == 128.0


def test_the_next_loss_has_the_new_scale():
    net, wrapper = make(loss_scale=256.0)
    for index in range(4):
        train(net, wrapper, index, 'head.weight', INF if index == 1 else 0.0)
    assert wrapper.last_step.loss_scale == 128.0


def test_gradients_are_kept_no_longer_than_needed():
    net, wrapper = make()
    train(net, wrapper, 0)
    train(net, wrapper, 1)
    assert all(p.grad is None for p in net.parameters())
    wrapper.last_step  # noqa: B018
    assert not is_unread(wrapper)


@pytest.mark.parametrize('clip', [None, dict(max_norm=1.0)])
def test_a_huge_finite_gradient_is_applied_late(clip):
    param = torch.nn.Parameter(torch.zeros(4))
    wrapper = SafeOptimWrapper(
        torch.optim.SGD([param], lr=1e-30, fused=True), clip_grad=clip
    )
    wrapper.update_params(param.sum())
    wrapper.update_params((param * 1e30).sum())
    before = param.detach().clone()
    assert wrapper.last_step.applied
    assert wrapper.last_step.grad_norm == pytest.approx(2e30)
    moved = (before - param).tolist()
    expected = 1.0 if clip is None else 0.5e-30
    assert moved == pytest.approx([expected] * 4)
    assert param.grad is None


def test_gradients_made_after_the_verdict_survive_it():
    net, wrapper = make(SafeOptimWrapper)
    train(net, wrapper, 0)
    train(net, wrapper, 1, 'head.weight', NAN)
    # Somebody back-propagates without the wrapper.
    net(toy_batch(2)[0]).sum().backward()
    assert wrapper.last_step.skipped
    assert all(p.grad is not None for p in net.parameters())


def test_loading_a_state_drops_an_unread_step():
    net, wrapper = make(loss_scale=256.0)
    train(net, wrapper, 0)
    state = wrapper.state_dict()
    train(net, wrapper, 1, 'head.weight', INF)
    wrapper.load_state_dict(state)
    assert not is_unread(wrapper)
    assert wrapper.loss_scaler.get_scale() == 256.0


def test_parts_whose_norms_overflow_together_are_applied():
    params = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    model = torch.nn.ParameterDict(dict(zip('ab', params)))
    wrapper = SafeOptimWrapper(torch.optim.SGD(params, lr=1e-19, fused=True))
    wrapper.clip = parse_clip(
        'test',
        configs=[dict(module_name=name, max_norm=1e30) for name in 'ab'],
    )
    wrapper.initialize_count_status(model, 0, 10)
    for scale in (1.0, 1.5e19):
        wrapper.update_params(sum(p.sum() for p in params) * scale)
    assert wrapper.last_step.applied
    assert [p.item() for p in params] == pytest.approx([-1.5, -1.5])
