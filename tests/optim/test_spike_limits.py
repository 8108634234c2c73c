"""Limits of loss and norm: told before a step, compared where it is made.

The device is simulated: the step is told that its verdict is not on the host.
"""

from __future__ import annotations

import pytest
import torch
from mmengine.hooks import Hook

from mmstable import SafeAmpOptimWrapper, SafeOptimWrapper
from mmstable.events import Fault
from mmstable.optim.clipping import parse_clip
from mmstable.optim.pending_step import Peak, PendingStep, StepHold
from tests.optim.test_costs import HOST_READ, Recorder
from tests.toys import INF, assert_same, toy_net, toy_runner, weights

wrappers = pytest.mark.parametrize(
    ('cls', 'settings'),
    [
        (SafeOptimWrapper, {}),
        (SafeAmpOptimWrapper, dict(loss_scale=256.0)),
        (SafeOptimWrapper, dict(clip_grad=dict(max_norm=1e3))),
    ],
    ids=['fp32', 'fp16', 'clipped'],
)


def limit(wrapper, loss, norm, verdict=Fault.SPIKE):
    """Hold steps above these limits, and give all the same verdict."""
    held = []

    def judge(pending, norm, loss):
        held.append((norm, loss))
        return verdict

    hold = StepHold(Peak(), Peak(), judge)
    hold.loss.limit, hold.norm.limit = loss, norm
    wrapper.hold_steps(hold)
    return held


@pytest.fixture
def accelerator(monkeypatch):
    monkeypatch.setattr(PendingStep, 'is_on_host', False)


def make(cls, settings, fused=True):
    net = toy_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, fused=fused)
    wrapper = cls(optimizer=optimizer, **settings)
    step(net, wrapper)
    return net, wrapper


def step(net, wrapper, factor=1.0):
    """A step of a loss of 1, and of a norm of about 1, times a factor."""
    loss = sum(p.sum() for p in net.parameters()) / 10
    loss = (loss - loss.detach() + 1.0) * factor
    wrapper.backward(loss)
    wrapper.step()


@wrappers
def test_a_device_compares_without_the_host(accelerator, cls, settings):
    net, wrapper = make(cls, settings)
    limit(wrapper, loss=50.0, norm=50.0)
    for factor, is_made in ((1.0, True), (100.0, False), (2.0, True)):
        before = weights(net)
        recorder = Recorder()
        with recorder:
            step(net, wrapper, factor)
        assert recorder.calls[HOST_READ] == 0
        # Nobody has read the verdict, but it is obeyed.
        assert wrapper._pending is not None
        moved = any(
            not torch.equal(now, before[name])
            for name, now in weights(net).items()
        )
        assert moved is is_made
        report = wrapper.last_step
        assert report.applied is is_made
        assert report.fault is (None if is_made else Fault.SPIKE)
        assert report.loss == pytest.approx(factor)
        wrapper.zero_grad()


@pytest.mark.parametrize('limits', [(50.0, INF), (INF, 50.0)])
@pytest.mark.parametrize('on_host', [False, True])
@wrappers
def test_either_limit_is_enough(monkeypatch, cls, settings, limits, on_host):
    monkeypatch.setattr(PendingStep, 'is_on_host', on_host)
    net, wrapper = make(cls, settings)
    held = limit(wrapper, *limits)
    before = weights(net)
    step(net, wrapper, 100.0)
    if 'clip_grad' in settings and limits[1] == INF:
        # Clipping bounds the step, whatever its loss is.
        assert wrapper.last_step.applied and not held
        return
    assert wrapper.last_step.fault is Fault.SPIKE
    assert len(held) == 1
    assert_same(weights(net), before)


@pytest.mark.parametrize(
    'clip',
    [
        dict(max_norm=10.0),
        dict(type='value', clip_value=0.1),
        dict(type='value', clip_value=100.0),
    ],
)
@pytest.mark.parametrize('on_host', [False, True])
def test_what_clipping_bounds_is_not_held(monkeypatch, clip, on_host):
    monkeypatch.setattr(PendingStep, 'is_on_host', on_host)
    net, wrapper = make(SafeOptimWrapper, dict(clip_grad=clip))
    held = limit(wrapper, 50.0, 50.0)
    step(net, wrapper, 100.0)
    assert wrapper.last_step.applied
    assert held == []


@pytest.mark.parametrize('on_host', [False, True])
@wrappers
def test_a_held_step_that_is_applied_is_the_same(
    monkeypatch, cls, settings, on_host
):
    monkeypatch.setattr(PendingStep, 'is_on_host', on_host)
    results = []
    for norm in (INF, 50.0):
        net, wrapper = make(cls, settings)
        held = limit(wrapper, INF, norm, verdict=None)
        for factor in (1.0, 100.0, 1.0):
            step(net, wrapper, factor)
            wrapper.resolve()
            wrapper.zero_grad()
        assert wrapper.applied_steps == 4
        assert len(held) == (norm == 50.0)
        results.append(weights(net))
    if on_host:
        assert_same(*results)
    else:
        # The device divides by a float32.
        torch.testing.assert_close(*results)


@wrappers
def test_limits_cost_a_device_no_more_operations(accelerator, cls, settings):
    counts = []
    for limits in ((INF, INF), (50.0, 50.0)):
        net, wrapper = make(cls, settings)
        limit(wrapper, *limits)
        recorder = Recorder()
        with recorder:
            step(net, wrapper)
            wrapper.resolve()
        counts.append(sum(recorder.calls.values()))
        assert wrapper.last_step.applied
    # The comparison of the loss, and that both hold.
    assert counts[1] <= counts[0] + 2


def test_the_host_compares_without_any_operation():
    counts = []
    for limits in (None, (50.0, 50.0)):
        net, wrapper = make(SafeOptimWrapper, {})
        if limits is not None:
            limit(wrapper, *limits)
        recorder = Recorder()
        with recorder:
            step(net, wrapper)
        counts.append(recorder.calls)
    assert counts[0] == counts[1]


@pytest.mark.parametrize('most', [INF, 1e300])
def test_a_loss_that_is_not_finite_is_judged_by_its_gradients(
    accelerator, most
):
    net, wrapper = make(SafeOptimWrapper, {})
    limit(wrapper, loss=most, norm=INF)
    loss = sum(p.sum() for p in net.parameters()) + INF
    before = weights(net)
    wrapper.backward(loss)
    wrapper.step()
    assert wrapper.last_step.applied
    assert wrapper.last_step.loss is None
    assert any(
        not torch.equal(now, before[name])
        for name, now in weights(net).items()
    )


def test_squares_that_overflow_are_withheld_by_the_device(accelerator):
    net, wrapper = make(SafeOptimWrapper, {})
    before = weights(net)
    step(net, wrapper, 1e25)
    assert_same(weights(net), before)
    report = wrapper.last_step
    assert (report.fault, report.skipped) == (Fault.SPIKE, True)
    step(net, wrapper)
    assert wrapper.last_step.applied


def test_gradients_that_the_device_need_not_have_withheld(monkeypatch):
    """A huge norm of values that are small enough, in float16."""

    def run(on_host):
        param = torch.nn.Parameter(torch.zeros(1000, dtype=torch.float16))
        optimizer = torch.optim.AdamW([param], lr=0.01, eps=1e-3, fused=True)
        wrapper = SafeOptimWrapper(optimizer)
        monkeypatch.setattr(PendingStep, 'is_on_host', on_host)
        for factor in (1.0, 20.0, 300.0, 9000.0, 1.0):
            wrapper.update_params(param.sum() * factor)
            outcomes.append(wrapper.last_step.outcome.value)
        return param.detach()

    outcomes: list[str] = []
    torch.testing.assert_close(run(False), run(True))
    wanted = ['applied'] * 3 + ['skipped', 'applied']
    assert outcomes == wanted * 2


def test_parts_that_are_clipped_apart_are_judged_together(accelerator):
    net, wrapper = make(SafeOptimWrapper, {})
    wrapper.clip = parse_clip(
        'test', configs=[dict(module_name='head', max_norm=1e6)]
    )
    wrapper.initialize_count_status(net, 0, 10)
    step(net, wrapper)
    limit(wrapper, loss=INF, norm=50.0)
    step(net, wrapper, 40.0)
    assert wrapper.last_step.applied
    before = weights(net)
    step(net, wrapper, 100.0)
    assert_same(weights(net), before)
    assert wrapper.last_step.fault is Fault.SPIKE


class Unread(Hook):
    """Notes whether steps run ahead of the host."""

    priority = 'HIGHEST'

    def __init__(self) -> None:
        self.pending: list[bool] = []

    def after_train_iter(self, runner, *args, **kwargs):
        self.pending.append(runner.optim_wrapper._pending is not None)


def test_a_guarded_run_runs_ahead(accelerator, tmp_path):
    unread = Unread()
    runner = toy_runner(
        tmp_path,
        dict(
            type='mmstable.SafeOptimWrapper',
            optimizer=dict(type='AdamW', lr=1e-4, fused=True),
        ),
        80,
        [unread, dict(type='mmstable.DivergenceGuardHook')],
    )
    runner.train()
    assert unread.pending == [False] + [True] * 79
    assert runner.optim_wrapper.applied_steps == 80
    assert runner.optim_wrapper._hold.norm.limit < INF
