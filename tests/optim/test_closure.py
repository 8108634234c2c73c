"""``optim_wrapper.step(closure=...)``: the optimizer asks for gradients."""

import pytest
import torch
from mmengine.optim import OptimWrapper
from torch import nn

from mmstable import SafeAmpOptimWrapper, SafeOptimWrapper
from mmstable.errors import ConfigError
from mmstable.events import Fault
from tests.loops.runs import log_of
from tests.toys import (
    NAN,
    ToyModel,
    assert_same,
    spoiled,
    toy_batch,
    toy_net,
    toy_runner,
    weights,
)


def lbfgs(model, **settings):
    return torch.optim.LBFGS(
        model.parameters(), lr=0.1, max_iter=4, history_size=3, **settings
    )


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def wolfe(model):
    return lbfgs(model, line_search_fn='strong_wolfe')


class WithClosure(ToyModel):
    """Trains by a closure; spoils what it is told to.

    Args:
        bad (dict): Iteration to what is spoiled: a factor for the loss, or
            the name of a parameter with a bad gradient.
        through_wrapper (bool): Whether the wrapper back-propagates.
    """

    def __init__(self, bad=None, through_wrapper=True) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.bad, self.through_wrapper = bad or {}, through_wrapper
        self.done = self.evaluated = 0

    def forward(self, inputs, targets, mode='tensor'):
        return super().forward(self.norm(inputs), targets, mode)

    def train_step(self, data, optim_wrapper):
        self.done += 1
        fault = self.bad.get(self.done)

        def closure():
            self.evaluated += 1
            optim_wrapper.zero_grad()
            with optim_wrapper.optim_context(self):
                loss = self(**data, mode='loss')['loss']
            if isinstance(fault, float):
                loss = loss * fault
            name = fault if isinstance(fault, str) else None
            with spoiled(self, name, NAN):
                if self.through_wrapper:
                    optim_wrapper.backward(loss)
                else:
                    loss.backward()
            return loss

        optim_wrapper.step(closure=closure)
        return dict(loss=torch.tensor(0.0))


def train(folder, make, wrapper=SafeOptimWrapper, iters=9, **settings):
    model = WithClosure(**settings)
    runner = toy_runner(folder, wrapper(make(model)), iters, model=model)
    runner.train()
    return runner


def state(runner):
    optimizer = runner.optim_wrapper.optimizer
    return [weights(runner.model), list(optimizer.state.values())]


@pytest.mark.parametrize('through_wrapper', [True, False])
@pytest.mark.parametrize('make', [lbfgs, wolfe, adam])
def test_healthy_steps_are_those_of_mmengine(tmp_path, make, through_wrapper):
    kwargs = dict(make=make, through_wrapper=through_wrapper)
    ours = train(tmp_path / 'ours', **kwargs)
    theirs = train(tmp_path / 'theirs', wrapper=OptimWrapper, **kwargs)
    assert_same(state(ours), state(theirs))
    assert ours.optim_wrapper.applied_steps == 9
    report = ours.optim_wrapper.last_step
    assert report.applied and report.grad_norm > 0


@pytest.mark.parametrize('through_wrapper', [True, False])
@pytest.mark.parametrize('make', [lbfgs, wolfe, adam])
@pytest.mark.parametrize('fault', [NAN, 'net.head.bias'])
def test_a_bad_step_leaves_no_trace(tmp_path, make, fault, through_wrapper):
    """As if training had stopped before the bad iteration."""
    bad = train(
        tmp_path / 'bad',
        make,
        bad={5: fault},
        iters=5,
        through_wrapper=through_wrapper,
    )
    clean = train(
        tmp_path / 'clean', make, iters=4, through_wrapper=through_wrapper
    )
    assert_same(state(bad), state(clean))
    report = bad.optim_wrapper.last_step
    if isinstance(fault, str):
        assert report.fault is Fault.NAN_GRAD
        assert [one.name for one in report.culprits] == [fault]
    else:
        assert report.fault is Fault.NAN_LOSS
    # It did not try again and again.
    assert bad.model.evaluated == clean.model.evaluated + 1


def test_training_goes_on_after_a_bad_step(tmp_path):
    runner = train(tmp_path, wolfe, bad={1: NAN, 4: 'net.norm.bias'})
    wrapper = runner.optim_wrapper
    assert (wrapper.applied_steps, wrapper.skipped_steps) == (7, 2)
    assert all(value.isfinite().all() for value in state(runner)[0].values())


def test_weights_that_explode_are_restored():
    """All gradients but the last are finite: only the end tells."""
    param = nn.Parameter(torch.tensor([1.0]))
    optimizer = torch.optim.LBFGS([param], lr=1e30, max_iter=6)
    wrapper = SafeOptimWrapper(optimizer)

    def closure():
        optimizer.zero_grad()
        loss = param.square().square().sum()
        loss.backward()
        return loss

    wrapper.step(closure=closure)
    assert wrapper.last_step.skipped
    assert wrapper.last_step.fault is Fault.NAN_LOSS
    assert param.item() == 1.0
    assert not optimizer.state[param]


def test_an_accumulated_bad_loss_is_a_skip():
    net = toy_net()
    wrapper = SafeOptimWrapper(lbfgs(net), accumulative_counts=2)
    before = weights(net)

    def closure():
        wrapper.zero_grad()
        x, y = toy_batch(0)
        loss = (net(x) - y).square().mean() * NAN
        wrapper.backward(loss)
        return loss

    wrapper.step(closure=closure)
    assert wrapper.last_step.fault is Fault.NAN_LOSS
    assert_same(weights(net), before)


def test_other_arguments_reach_the_optimizer():
    class Picky(torch.optim.SGD):
        def step(self, closure=None, *, twice=False):
            for _ in range(1 + twice):
                super().step(closure)

    param = nn.Parameter(torch.ones(1))
    wrapper = SafeOptimWrapper(Picky([param], lr=0.25))

    def closure():
        wrapper.zero_grad()
        loss = param.sum()
        loss.backward()
        return loss

    wrapper.step(closure=closure, twice=True)
    assert param.item() == 0.5


def test_it_works_by_update_params():
    net = toy_net()
    wrapper = SafeOptimWrapper(lbfgs(net))
    x, y = toy_batch(0)

    def loss_of():
        return (net(x) - y).square().mean()

    def closure():
        wrapper.zero_grad()
        loss = loss_of()
        loss.backward()
        return loss

    first = loss_of().item()
    wrapper.update_params(loss_of(), step_kwargs=dict(closure=closure))
    assert wrapper.last_step.applied
    assert loss_of().item() < first


def test_no_closure_is_a_step_like_any_other():
    net = toy_net()
    wrapper = SafeOptimWrapper(adam(net))
    x, y = toy_batch(0)
    wrapper.backward((net(x) - y).square().mean())
    wrapper.step(closure=None)
    assert wrapper.last_step.applied


def test_a_loss_scale_and_a_closure_exclude_each_other():
    net = toy_net()
    wrapper = SafeAmpOptimWrapper(optimizer=lbfgs(net))
    with pytest.raises(
        ConfigError,
        match=r'step: a `closure` cannot be used with a loss scale.*bfloat16',
    ):
        wrapper.step(closure=lambda: torch.tensor(0.0))


def test_bfloat16_has_no_scale():
    net = toy_net()
    wrapper = SafeAmpOptimWrapper(optimizer=lbfgs(net), dtype='bfloat16')
    x, y = toy_batch(0)

    def closure():
        wrapper.zero_grad()
        with wrapper.optim_context(net):
            loss = (net(x).float() - y).square().mean()
        wrapper.backward(loss)
        return loss

    wrapper.step(closure=closure)
    assert wrapper.last_step.applied


def test_clipping_is_said_to_have_no_effect(tmp_path):
    model = WithClosure()
    wrapper = SafeOptimWrapper(lbfgs(model), clip_grad=dict(max_norm=1e-9))
    runner = toy_runner(tmp_path, wrapper, 3, model=model)
    runner.train()
    assert log_of(runner).count('has no effect on steps with a `closure`') == 1
