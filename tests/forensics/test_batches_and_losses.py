"""Batches without names, losses of any form, several optimizers."""

from __future__ import annotations

import pytest
import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapperDict
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, DistributedSampler

from mmstable import SafeOptimWrapper
from tests.forensics.runs import run
from tests.loops.runs import iter_loop
from tests.toys import NAN, ToyData, ToyModel


class Numbered(ToyData):
    """One of its samples is bad, and none has a name."""

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        if index == 13:
            sample['inputs'] = sample['inputs'] * NAN
        return sample


class TwoNets(BaseModel):
    """The second net learns from what the first one gave."""

    def __init__(self, is_bad):
        super().__init__()
        self.gen, self.disc = nn.Linear(4, 4), nn.Linear(4, 4)
        self.is_bad = is_bad

    def forward(self, inputs, mode='loss'):
        return self.disc(self.gen(inputs))

    def train_step(self, data, optim_wrapper):
        gen, disc = optim_wrapper['gen'], optim_wrapper['disc']
        inputs = data['inputs'].flatten(1)[:, :4]
        self.disc.requires_grad_(False)
        loss_gen = self(inputs).square().mean()
        if self.is_bad(self.disc):
            loss_gen = loss_gen * float('nan')
        gen.update_params(loss_gen)
        self.disc.requires_grad_(True)
        loss_disc = self.disc(self.gen(inputs).detach()).square().mean()
        disc.update_params(loss_disc)
        return dict(loss_gen=loss_gen, loss_disc=loss_disc)


def test_weights_that_another_optimizer_moved_are_no_broken_hardware(tmp_path):
    first = []

    def is_bad(net):
        first.append(net.weight.detach().clone())
        return torch.equal(net.weight, first[0])

    model = TwoNets(is_bad)
    wrappers = {
        name: SafeOptimWrapper(SGD(getattr(model, name).parameters(), 0.1))
        for name in ('gen', 'disc')
    }
    _, (found,) = run(
        tmp_path,
        model=model,
        optim_wrapper=OptimWrapperDict(**wrappers),
        train_cfg=iter_loop(2),
    )
    assert found.verdict == 'not_reproduced'
    assert 'An optimizer has changed them in that iteration' in found.text


class NamedLosses(ToyModel):
    """Adds up its losses by itself, and some have names in names."""

    def forward(self, inputs, targets, mode='loss'):
        x = self.net(inputs)
        bad = (x - x).mean() / 0
        return dict(head=dict(loss_a=x.mean(), loss_b=bad), more=[x.sum()])

    def parse_losses(self, losses):
        return sum(losses['head'].values()), {}


def test_losses_with_names_in_names(tmp_path):
    _, found = run(tmp_path, model=NamedLosses(), train_cfg=iter_loop(1))
    assert found[0].loss_terms == ('head.loss_b',)


@pytest.mark.parametrize(
    'sampler', [DefaultSampler, InfiniteSampler, DistributedSampler]
)
@pytest.mark.parametrize('counts', [1, 4])
def test_a_sample_without_a_name_has_its_index(tmp_path, sampler, counts):
    data = Numbered()
    arguments = dict(seed=5, shuffle=True)
    if sampler is DistributedSampler:
        arguments.update(num_replicas=1, rank=0)
    _, (found,) = run(
        tmp_path,
        train_dataloader=DataLoader(
            data, batch_size=2, sampler=sampler(data, **arguments)
        ),
        optim_wrapper=dict(
            type='mmstable.SafeOptimWrapper',
            optimizer=dict(type='SGD', lr=0.1),
            accumulative_counts=counts,
        ),
        train_cfg=iter_loop(8),
    )
    assert found.sample_names == ('dataset_index=13',)


class Greedy(ToyModel):
    """Writes to its own batch."""

    def forward(self, inputs, targets, mode='loss'):
        inputs.sub_(inputs.mean()).div_(0)
        return super().forward(inputs, targets, mode)


def test_a_batch_that_the_model_has_spoilt_is_said_to_be_so(tmp_path):
    _, found = run(tmp_path, model=Greedy(), train_cfg=iter_loop(1))
    assert found[0].verdict == 'bad_input'
    assert 'inputs of the batch was written to in place' in found[0].text
