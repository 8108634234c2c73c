"""Questions about a step: the same again, and nothing is left of them."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from torch import nn

from mmstable import SafeAmpOptimWrapper, SafeOptimWrapper
from mmstable.loops.question import CannotAsk
from mmstable.loops.train_step import TrainStep
from mmstable.optim.pending_step import Peak, StepHold
from mmstable.state.rng import capture_rng
from tests.toys import assert_same


class Asked(BaseModel):
    """Draws from all generators, and keeps whatever a model can keep."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.center = torch.zeros(4)
        self.seen, self.count = [], 0

    def forward(self, inputs, mode='loss'):
        x = self.norm(self.fc(inputs)) * torch.rand(4)
        x = F.dropout(x) * random.random() * np.random.rand()
        self.center += x.detach().mean(0)
        self.seen.append(len(inputs))
        self.count += 1
        return dict(loss=x.square().mean())

    def train_step(self, data, optim_wrapper):
        with optim_wrapper.optim_context(self):
            losses = self(**data, mode='loss')
        optim_wrapper.update_params(losses['loss'])
        return losses


def picture(model):
    """All that must be as before."""
    tensors = [*model.parameters(), *model.buffers()]
    return {
        'ids': [id(one) for one in tensors],
        'versions': [one._version for one in tensors],
        'values': [one.detach().clone() for one in tensors],
        'grads': [id(one.grad) for one in model.parameters()],
        'grad values': [one.grad.clone() for one in model.parameters()],
        'own': [list(model.seen), model.count, model.center.clone()],
        'rng': capture_rng(),
    }


def make(cls, **settings):
    torch.manual_seed(0)
    model = Asked()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapper = cls(optimizer=optimizer, **settings)
    runner = SimpleNamespace(model=model, optim_wrapper=wrapper)
    step = TrainStep(runner)
    step.bind()
    step.expect_questions()
    return model, wrapper, step


@pytest.mark.parametrize(
    ('cls', 'settings'),
    [
        (SafeOptimWrapper, {}),
        (SafeAmpOptimWrapper, dict(dtype='bfloat16')),
        (SafeAmpOptimWrapper, dict(loss_scale=64.0)),
    ],
    ids=['fp32', 'bf16', 'fp16'],
)
def test_a_question_has_the_same_answer_and_leaves_nothing(cls, settings):
    model, wrapper, step = make(cls, **settings)
    seen = []

    def judge(pending, norm, loss):
        before = picture(model)
        for _ in range(2):
            answer = step.ask_again(1, 2.0)
            seen.append((answer.loss / loss, answer.norm / norm))
            assert_same(picture(model), before)
        # What a step changes for good is known.
        assert {'seen', 'center'} <= set(answer.changed)

    hold = StepHold(Peak(), Peak(), judge)
    hold.norm.limit = 0.0
    wrapper.hold_steps(hold)
    step.run(dict(inputs=torch.randn(3, 4)), 1)
    assert seen == [pytest.approx((1.0, 1.0))] * 2
    assert wrapper.applied_steps == 1


def test_a_held_step_is_applied_as_it_was():
    results = []
    for limit in (0.0, float('inf')):
        model, wrapper, step = make(SafeOptimWrapper)

        def judge(pending, norm, loss, step=step):
            step.ask_again(1, 2.0)

        hold = StepHold(Peak(), Peak(), judge)
        hold.norm.limit = limit
        wrapper.hold_steps(hold)
        torch.manual_seed(1), random.seed(1), np.random.seed(1)
        step.run(dict(inputs=torch.randn(3, 4)), 1)
        results.append(model.state_dict())
    assert_same(*results)


def test_other_weights_are_tried_and_taken_back():
    model, _, step = make(SafeOptimWrapper)
    step.run(dict(inputs=torch.randn(3, 4)), 1)
    record = step.last
    before = picture_of(model)
    (now,) = step.ask_about([record], lambda: None, False)
    (other,) = step.ask_about([record], model.fc.weight.data.zero_, False)
    assert now.loss != other.loss
    assert_same(picture_of(model), before)


def picture_of(model):
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def test_an_old_batch_is_not_asked_about():
    _, _, step = make(SafeOptimWrapper)
    step.run(dict(inputs=torch.randn(3, 4)), 1)
    with pytest.raises(CannotAsk, match='its batches are gone'):
        step.ask_again(2, 2.0)


def test_several_wrappers_are_not_asked():
    _, wrapper, step = make(SafeOptimWrapper)
    step._wrappers = [wrapper, wrapper]
    with pytest.raises(CannotAsk, match='several optimizer wrappers'):
        step.ask_again(1, 2.0)


def test_a_step_that_fails_cannot_be_asked():
    model, _, step = make(SafeOptimWrapper)
    step.run(dict(inputs=torch.randn(3, 4)), 1)
    step.last.batch = dict(unknown=1)
    with pytest.raises(CannotAsk, match='TypeError'):
        step.ask_again(1, 2.0)
    assert model.count == 1
