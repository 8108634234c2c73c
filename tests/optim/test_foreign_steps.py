"""Models that use ``optim_wrapper.loss_scaler`` as torch's GradScaler."""

import pytest
import torch
from torch.nn.utils import clip_grad_norm_

from mmstable import SafeAmpOptimWrapper
from mmstable.optim.loss_scale import LossScaler, ScalePolicy
from tests.optim.test_against_stock import CpuAmpOptimWrapper, optimizer_of
from tests.toys import (
    INF,
    NAN,
    Sabotage,
    ToyModel,
    assert_same,
    toy_runner,
    weights,
)


class ReachingModel(ToyModel):
    """Steps by itself, as code written for torch does."""

    def __init__(self, clip):
        super().__init__()
        self.clip = clip
        self.scales = []

    def train_step(self, data, optim_wrapper):
        scaler, optimizer = optim_wrapper.loss_scaler, optim_wrapper.optimizer
        optimizer.zero_grad()
        with optim_wrapper.optim_context(self):
            losses = self(**data, mode='loss')
        scaler.scale(losses['loss']).backward()
        if self.clip:
            scaler.unscale_(optimizer)
            clip_grad_norm_(self.parameters(), self.clip)
        scaler.step(optimizer)
        scaler.update()
        self.scales.append(scaler.get_scale())
        return losses


def train(tmp_path, wrapper_type, clip, kind, fused, **scale):
    model = ReachingModel(clip)
    wrapper = wrapper_type(
        optimizer=optimizer_of(model, kind, fused=fused), **scale
    )
    wrapper.loss_scaler.set_growth_interval(3)
    sabotage = Sabotage(grads={5: ('net.head.bias', NAN)})
    runner = toy_runner(tmp_path, wrapper, 16, [sabotage], model=model)
    runner.train()
    return model, runner.optim_wrapper


@pytest.mark.parametrize('clip', [None, 0.1])
@pytest.mark.parametrize('fused', [False, True])
@pytest.mark.parametrize('kind', ['sgd', 'adamw'])
def test_they_train_as_with_torchs_scaler(tmp_path, kind, fused, clip):
    # The scale overflows some times before it fits. If that happens in the
    # first step, torch's fused SGD goes on with uninitialised momentum.
    fused = fused and kind != 'sgd'
    scale = 2.0**22
    ours, safe = train(
        tmp_path / 'ours', SafeAmpOptimWrapper, clip, kind, fused,
        loss_scale=scale,
    )  # fmt: skip
    theirs, stock = train(
        tmp_path / 'theirs', CpuAmpOptimWrapper, clip, kind, fused,
        init_scale=scale,
    )  # fmt: skip
    assert ours.scales == theirs.scales
    assert min(ours.scales) < scale
    assert any(b > a for a, b in zip(ours.scales, ours.scales[1:]))
    assert_same(weights(ours), weights(theirs))
    assert_same(safe.optimizer.state_dict(), stock.optimizer.state_dict())
    state = safe.loss_scaler.state_dict()
    assert {**state, **stock.loss_scaler.state_dict()} == state


def pair(value=1.0, **settings):
    """A scaler, and an optimizer with one gradient of this value, scaled."""
    scaler = LossScaler(ScalePolicy(init_scale=8.0, **settings))
    param = torch.nn.Parameter(torch.ones(2))
    param.grad = torch.full((2,), value)
    return scaler, torch.optim.SGD([param], lr=1.0), param


def test_unscaled_gradients_are_seen_and_stepped_once():
    scaler, optimizer, param = pair(8.0)
    scaler.unscale_(optimizer)
    assert param.grad.tolist() == [1.0, 1.0]
    assert scaler.step(optimizer) is None
    assert param.tolist() == [0.0, 0.0]


def test_a_finite_gradient_with_a_huge_norm_is_a_good_one():
    scaler, optimizer, param = pair(3e38)
    scaler.step(optimizer)
    scaler.update()
    assert param[0].item() == pytest.approx(-3e38 / 8)
    assert scaler.get_scale() == 8.0


def test_sparse_gradients_and_none_at_all():
    scaler, optimizer, param = pair()
    indices = torch.tensor([[0, 0]])
    param.grad = torch.sparse_coo_tensor(indices, [8.0, 16.0], (2,))
    scaler.step(optimizer)
    assert param.tolist() == [-2.0, 1.0]
    scaler.update()
    param.grad = None
    scaler.step(optimizer)
    scaler.update()
    assert param.tolist() == [-2.0, 1.0]


def test_one_bad_optimizer_backs_off_for_all():
    scaler, bad, _ = pair(INF)
    _, good, param = pair(8.0)
    scaler.step(good)
    scaler.step(bad)
    scaler.update()
    assert scaler.get_scale() == 4.0
    assert param.tolist() == [0.0, 0.0]


def test_nothing_moves_without_a_step():
    scaler, *_ = pair(growth_interval=1)
    scaler.update()
    assert scaler.get_scale() == 8.0


@pytest.mark.parametrize('new', [32.0, torch.tensor(32.0), torch.tensor([32])])
def test_update_takes_a_scale(new):
    scaler, optimizer, _ = pair(INF)
    scaler.step(optimizer)
    scaler.update(new)
    assert scaler.get_scale() == 32.0
    scaler.update(0.25)
    assert scaler.get_scale() == 1.0


def test_off_means_a_plain_step():
    scaler = LossScaler(ScalePolicy(), enabled=False)
    _, optimizer, param = pair(INF)
    scaler.unscale_(optimizer)
    scaler.step(optimizer, closure=None)
    scaler.update()
    assert param.tolist() == [-INF, -INF]


def test_settings_are_read_and_set():
    scaler, *_ = pair(hysteresis=2)
    scaler.set_growth_factor(4.0)
    scaler.set_backoff_factor(0.25)
    scaler.set_growth_interval(7)
    assert scaler.get_growth_factor() == 4.0
    assert scaler.get_backoff_factor() == 0.25
    assert scaler.get_growth_interval() == 7
    assert scaler.policy.hysteresis == 2
    with pytest.raises(
        ValueError, match='`growth_factor` must be a finite number above 1'
    ):
        scaler.set_growth_factor(1.0)


def test_steps_in_the_wrong_order():
    scaler, optimizer, _ = pair()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r'unscale_: unscale_\(\) was'):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r'unscale_: step\(\) was called'):
        scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r'step: step\(\) was called'):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match='a `closure` cannot be used'):
        scaler.step(optimizer, closure=lambda: None)
    with pytest.raises(ValueError, match='`new_scale` must be .* got 0.0'):
        scaler.update(0)
