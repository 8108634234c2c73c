"""Running statistics where two optimizers train parts of one model."""

from __future__ import annotations

import math

import pytest
import torch
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapperDict
from torch import nn

from mmstable import SafeOptimWrapper
from tests.loops.runs import log_of
from tests.toys import toy_runner

NAN = math.nan


def wrappers(model):
    return OptimWrapperDict(
        **{
            name: SafeOptimWrapper(
                torch.optim.SGD(getattr(model, name).parameters(), lr=0.01)
            )
            for name in ('gen', 'disc')
        }
    )


class Gan(BaseModel):
    """A generator and a discriminator, both with BatchNorm.

    Args:
        bad (dict): Iteration to what is spoiled in it: 'disc', 'gen', 'both'.
        gen_from (int): The first iteration that steps the generator.
    """

    def __init__(self, bad=None, gen_from=1) -> None:
        super().__init__()
        self.gen = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        self.disc = nn.Sequential(
            nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)
        )
        self.register_buffer('step_counter', torch.tensor(0))
        self.bad, self.gen_from = bad or {}, gen_from
        self.done = 0

    def counts(self):
        return {
            name: int(part[1].num_batches_tracked)
            for name, part in (('gen', self.gen), ('disc', self.disc))
        }

    def spoil(self, loss, *kinds):
        return loss * NAN if self.bad.get(self.done) in kinds else loss

    def begin(self, data):
        self.done += 1
        self.step_counter += 1
        return self.data_preprocessor(data)['inputs']

    def forward(self, inputs, mode='tensor'):
        return self.disc(self.gen(inputs))


class Apart(Gan):
    """Each part has its own forward passes, as in SRGAN."""

    def train_step(self, data, optim_wrapper):
        inputs = self.begin(data)
        gen, disc = optim_wrapper['gen'], optim_wrapper['disc']
        with gen.optim_context(self.gen):
            fake = self.gen(inputs)
            loss = self.spoil(fake.square().mean(), 'gen', 'both')
        if self.done >= self.gen_from:
            gen.update_params(loss)
        with disc.optim_context(self.disc):
            score = self.disc(fake.detach())
            loss = self.spoil(score.square().mean(), 'disc', 'both')
        disc.update_params(loss)
        return dict(loss=loss.detach())


class Shared(Gan):
    """One forward pass of the generator serves both, as in Pix2Pix."""

    def train_step(self, data, optim_wrapper):
        inputs = self.begin(data)
        gen, disc = optim_wrapper['gen'], optim_wrapper['disc']
        with disc.optim_context(self.disc):
            fake = self.gen(inputs)
            real = self.disc(fake.detach())
        loss = self.spoil(real.square().mean(), 'disc', 'both')
        disc.update_params(loss)
        with gen.optim_context(self.gen):
            loss_gen = self.disc(fake).mean()
        gen.update_params(self.spoil(loss_gen, 'gen', 'both'))
        return dict(loss=loss.detach(), loss_gen=loss_gen.detach())


def train(folder, model, iters=12):
    runner = toy_runner(
        folder,
        wrappers(model),
        iters,
        [dict(type='mmstable.GradNanLoggerHook')],
        model=model,
    )
    runner.train()
    return runner


def test_a_skip_undoes_the_passes_of_its_own_step_only(tmp_path):
    model = Apart(bad={5: 'disc', 8: 'disc', 9: 'gen'})
    runner = train(tmp_path, model)
    assert model.counts() == {'gen': 11, 'disc': 10}
    assert runner.optim_wrapper['disc'].skipped_steps == 2
    assert runner.optim_wrapper['gen'].skipped_steps == 1


def test_counters_of_the_user_are_left_alone(tmp_path):
    model = Apart(bad={5: 'both', 6: 'both'})
    train(tmp_path, model)
    assert int(model.step_counter) == 12


def test_passes_without_a_step_are_not_undone_later(tmp_path):
    """The generator is stepped from iteration 10 on, and that is bad."""
    model = Apart(bad={10: 'gen'}, gen_from=10)
    train(tmp_path, model)
    assert model.counts()['gen'] == 11


def test_a_graph_that_is_still_needed_survives_a_skip(tmp_path):
    model = Shared(bad={3: 'disc'})
    runner = train(tmp_path, model)
    assert runner.optim_wrapper['gen'].applied_steps == 12
    assert runner.optim_wrapper['disc'].applied_steps == 11


class BothFirst(Gan):
    """All forward passes come before all steps."""

    def train_step(self, data, optim_wrapper):
        inputs = self.begin(data)
        if self.bad.get(self.done) == 'both':
            inputs = inputs * NAN
        gen, disc = optim_wrapper['gen'], optim_wrapper['disc']
        with gen.optim_context(self.gen):
            fake = self.gen(inputs)
        with disc.optim_context(self.disc):
            score = self.disc(fake.detach())
            loss_gen = fake.square().mean()
        loss = score.square().mean()
        order = [(gen, loss_gen), (disc, loss)]
        for wrapper, one in order[:: 1 if self.gen_from == 1 else -1]:
            wrapper.update_params(one)
        return dict(loss=loss.detach())


@pytest.mark.parametrize('first', [1, 2])
def test_poison_of_both_is_undone_in_any_order(tmp_path, first):
    model = BothFirst(bad={4: 'both'}, gen_from=first)
    train(tmp_path, model)
    for name, value in model.named_buffers():
        assert torch.isfinite(value).all(), name


class Plain(Gan):
    """Never enters ``optim_context``."""

    def train_step(self, data, optim_wrapper):
        inputs = self.begin(data)
        loss = self.spoil(self(inputs).square().mean(), 'both')
        optim_wrapper.update_params(loss)
        return dict(loss=loss.detach())


def test_without_a_context_it_is_said_once(tmp_path):
    runner = toy_runner(
        tmp_path, model=Plain(bad={3: 'both', 5: 'both'}), max_iters=6
    )
    runner.train()
    assert log_of(runner).count('does not run its forward pass inside') == 1
