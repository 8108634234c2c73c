"""A ``train_step`` with several updates that runs out of memory."""

from __future__ import annotations

import pytest
import torch
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapperDict
from mmengine.structures import BaseDataElement
from torch import nn

from mmstable.batch import batch_shapes, name_sample, take_samples
from mmstable.events import Fault, Outcome
from mmstable.optim import SafeOptimWrapper
from tests.loops.runs import iter_loop
from tests.memory.scenes import Limits, run_out
from tests.toys import assert_same, toy_runner, weights


class Limited(nn.Module):
    """What :class:`Limits` sets, without any effect."""


class Gan(BaseModel):
    """Trains a discriminator, then a generator."""

    def __init__(self, fails=()):
        super().__init__()
        torch.manual_seed(0)
        self.generator = nn.Linear(4, 4)
        self.discriminator = nn.Linear(4, 1)
        self.limited = Limited()
        self.fails = list(fails)

    def forward(self, *args, **kwargs):
        raise NotImplementedError

    def train_step(self, data, optim_wrapper):
        x = data['inputs']
        first = optim_wrapper['discriminator']
        with first.optim_context(self):
            self._maybe_fail('discriminator')
            fake = self.generator(x).detach()
            loss = (
                self.discriminator(fake) - self.discriminator(x)
            ).mean() + self.discriminator(x).square().mean()
        first.update_params(loss)
        second = optim_wrapper['generator']
        with second.optim_context(self):
            self._maybe_fail('generator')
            loss = -self.discriminator(self.generator(x)).mean()
        second.update_params(loss)
        return dict(loss=loss.detach())

    def _maybe_fail(self, name):
        if self.fails and self.fails[0] == name:
            self.fails.pop(0)
            run_out()


def train(folder, fails=()):
    torch.manual_seed(0)
    model, hook = Gan(fails), Limits({})
    wrappers = OptimWrapperDict(
        **{
            name: SafeOptimWrapper(
                torch.optim.SGD(getattr(model, name).parameters(), lr=0.1)
            )
            for name in ('discriminator', 'generator')
        }
    )
    runner = toy_runner(
        folder,
        model=model,
        optim_wrapper=wrappers,
        hooks=(hook,),
        train_cfg=iter_loop(3),
    )
    runner.train()
    return runner, hook


def test_the_first_update_is_done_again(tmp_path):
    reference, _ = train(tmp_path / 'a')
    runner, hook = train(tmp_path / 'b', ['discriminator'])
    assert [event.rung for event in hook.events] == ['retry']
    assert_same(weights(runner.model), weights(reference.model))


def test_after_an_update_the_rest_is_left_out(tmp_path):
    runner, hook = train(tmp_path, ['generator'])
    (event,) = hook.events
    assert event.rung == 'skip'
    assert 'an earlier update of the same train_step' in event.reason
    first = {r.wrapper: r for r in hook.reports if r.iteration == 1}
    assert first['discriminator'].applied
    generator = first['generator']
    assert generator.outcome is Outcome.SKIPPED
    assert generator.fault is Fault.OOM
    wrappers = runner.optim_wrapper
    assert wrappers['discriminator'].applied_steps == 3
    assert wrappers['generator'].applied_steps == 2


@pytest.fixture
def collated():
    samples = [
        BaseDataElement(metainfo=dict(img_path=f'{i}.png')) for i in range(3)
    ]
    inputs = [torch.zeros(3, 4, i + 1) for i in range(3)]
    return dict(inputs=inputs, data_samples=samples)


def test_batches_of_lists_have_shapes_and_names(collated):
    shapes = batch_shapes(collated)
    assert shapes[2] == 'inputs[2] (3, 4, 3) float32'
    assert name_sample(collated, 1) == 'img_path=1.png'
    part = take_samples(collated, [1, 2])
    assert batch_shapes(part)[0] == 'inputs[0] (3, 4, 2) float32'
    assert name_sample(part, 0) == 'img_path=1.png'


def test_nested_batches_have_shapes():
    batch = (dict(img=torch.zeros(2, 3), points=[torch.zeros(5, 4)]), 'x')
    assert batch_shapes(batch) == (
        '[0].img (2, 3) float32',
        '[0].points[0] (5, 4) float32',
    )
