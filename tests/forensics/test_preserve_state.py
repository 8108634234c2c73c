"""A replay leaves nothing behind, bit by bit."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from mmengine.model import BaseModel
from torch import nn

from mmstable.forensics.replay import (
    StepInputs,
    StepSetup,
    replay_step,
)
from mmstable.state.preserve import preserve_state
from mmstable.state.rng import capture_rng
from tests.toys import assert_same


class Messy(BaseModel):
    """Changes whatever a forward pass can change."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.teacher = nn.Linear(4, 4).requires_grad_(False)
        self.center = torch.zeros(4)
        self.seen, self.count = [], 0
        self.register_buffer('table', torch.zeros(3))

    def forward(self, inputs, mode='loss'):
        x = self.norm(self.fc(inputs)) * torch.rand(4)
        x = x * random.random() * np.random.rand()
        self.teacher.weight.data.mul_(0.9).add_(self.fc.weight.data)
        self.center += x.detach().mean(0)
        self.seen.append(len(inputs))
        self.count += 1
        self.norm.eval()
        self.table = torch.ones(5)
        self.fc.register_forward_hook(lambda *args: None)
        self.fc.bias.requires_grad_(False)
        return dict(loss=x.square().mean())


def scene_of(model, **setup):
    names = tuple(name for name, _ in model.named_parameters())
    setups = {'optim_wrapper': StepSetup(parameters=names, **setup)}
    batch = dict(inputs=torch.randn(3, 4))
    return StepInputs(model, batch, setups, rng=capture_rng())


def picture(model):
    """All that must be as before."""
    tensors = [*model.parameters(), *model.buffers()]
    return {
        'ids': [id(one) for one in tensors],
        'versions': [one._version for one in tensors],
        'values': [one.detach().clone() for one in tensors],
        'grads': [id(one.grad) for one in model.parameters()],
        'grad values': [one.grad.clone() for one in model.parameters()],
        'flags': [one.requires_grad for one in tensors],
        'modes': [one.training for one in model.modules()],
        'hooks': [len(one._forward_hooks) for one in model.modules()],
        'own': [list(model.seen), model.count, model.center.clone()],
        'attributes': [sorted(vars(one)) for one in model.modules()],
        'rng': capture_rng(),
    }


@pytest.mark.parametrize('dtype', [None, 'bfloat16'])
@pytest.mark.parametrize('by_term', [False, True])
def test_nothing_is_left(dtype, by_term):
    model = Messy()
    for one in model.parameters():
        one.grad = torch.randn_like(one)
    scene = scene_of(model, dtype=dtype)
    before = picture(model)
    step = replay_step(scene, by_term=by_term)
    assert step.passes[0].gradients
    assert_same(picture(model), before)
    assert not torch.is_autocast_enabled()


def test_nothing_is_left_of_a_step_that_fails():
    class Failing(Messy):
        def forward(self, *args, **kwargs):
            super().forward(*args, **kwargs)
            raise RuntimeError('no')

    model = Failing()
    for one in model.parameters():
        one.grad = torch.randn_like(one)
    before = picture(model)
    with pytest.raises(RuntimeError, match='no'):
        replay_step(scene_of(model))
    before['rng'] = capture_rng()
    assert_same(picture(model), before)


def test_a_replay_gives_what_the_step_gave():
    model = Messy()
    scene = scene_of(model, loss_scale=8.0)
    first, second = replay_step(scene), replay_step(scene)
    (a,), (b,) = first.passes, second.passes
    assert torch.equal(a.loss, b.loss)
    assert_same(a.gradients, b.gradients)


def test_gradients_are_scaled():
    model = Messy()
    plain = scene_of(model)
    names = plain.setups['optim_wrapper'].parameters
    setup = StepSetup(loss_scale=8.0, loss_factor=2, parameters=names)
    scaled = StepInputs(model, plain.batch, {'w': setup}, rng=plain.rng)
    (a,), (b,) = replay_step(plain).passes, replay_step(scaled).passes
    assert torch.equal(a.loss, b.loss)
    for name, gradient in a.gradients.items():
        torch.testing.assert_close(4 * gradient, b.gradients[name])


def test_the_batch_stays_as_it_was():
    class Greedy(Messy):
        def forward(self, inputs, mode='loss'):
            inputs.mul_(0)
            return super().forward(inputs)

    scene = scene_of(Greedy())
    kept = scene.batch['inputs'].clone()
    replay_step(scene)
    assert torch.equal(scene.batch['inputs'], kept)


def test_shared_buffers_stay_shared():
    model = Messy()
    model.norm.register_buffer('other', model.table)
    with preserve_state(model):
        assert model.norm.other is model.table
    assert model.norm.other is model.table


class Helper:
    """What heads keep: samplers, coders, histories."""

    def __init__(self, owner):
        self.owner, self.calls = owner, 0
        self.numpy, self.python = np.random.RandomState(1), random.Random(1)
        self.torch = torch.Generator().manual_seed(1)
        self.history = {'sums': [], 'counts': np.zeros(2)}


class WithHelper(BaseModel):
    """Keeps its state in objects that torch knows nothing of."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.helper = Helper(self)
        self.same = self.helper.history
        self.bank = [torch.zeros(4)]
        self.scripted = torch.jit.script(nn.BatchNorm1d(4))

    def forward(self, inputs, mode='loss'):
        helper = self.helper
        assert helper.owner is self and self.same is helper.history
        helper.calls += 1
        draws = helper.numpy.rand() + helper.python.random()
        draws += float(torch.rand((), generator=helper.torch))
        helper.history['sums'].append(draws)
        helper.history['counts'] += 1
        self.bank[0] += 1
        return dict(loss=self.scripted(self.fc(inputs)).square().mean())


def test_nothing_is_left_in_objects_that_a_model_keeps():
    def picture():
        helper = model.helper
        return [
            *(helper.calls, str(helper.history), model.bank[0].clone()),
            *(str(helper.numpy.get_state()), helper.python.getstate()),
            helper.torch.get_state(),
            {k: v.clone() for k, v in model.state_dict().items()},
        ]

    model = WithHelper()
    before, kept = picture(), (model.helper, model.same, model.bank)
    step = replay_step(scene_of(model))
    assert step.passes[0].gradients
    assert_same(picture(), before)
    assert all(a is b for a, b in zip(kept, (model.helper, model.same)))
    assert model.bank is kept[2]
