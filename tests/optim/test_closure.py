"""``optim_wrapper.step(closure=...)``: the optimizer asks for gradients."""

import pytest
import torch
from mmengine.optim import OptimWrapper
from torch import nn

from mmstable import SafeAmpOptimWrapper, SafeOptimWrapper
from mmstable.errors import ConfigError
from tests.loops.runs import log_of
from tests.toys import (
    ToyModel,
    assert_same,
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
    """Trains by a closure.

    Args:
        through_wrapper (bool): Whether the wrapper back-propagates.
    """

    def __init__(self, through_wrapper=True) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.through_wrapper = through_wrapper

    def forward(self, inputs, targets, mode='tensor'):
        return super().forward(self.norm(inputs), targets, mode)

    def train_step(self, data, optim_wrapper):
        def closure():
            optim_wrapper.zero_grad()
            with optim_wrapper.optim_context(self):
                loss = self(**data, mode='loss')['loss']
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
    assert ours.optim_wrapper.last_step.applied
    assert log_of(ours).count('neither checked nor clipped') == 1


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
