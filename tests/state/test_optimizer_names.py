"""Entries of a saved optimizer get the names of their parameters."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from mmengine.optim import OptimWrapper, OptimWrapperDict

from mmstable import Culprit
from mmstable.state.run_state import name_saved_states
from tests.toys import toy_net


def wrap(module):
    # In two groups, which are counted through.
    groups = [{'params': [p]} for p in module.parameters()]
    return OptimWrapper(torch.optim.AdamW(groups))


def named(entry, wrapper, net):
    runner = SimpleNamespace(model=net, optim_wrapper=wrapper)
    (culprit,) = name_saved_states([Culprit(entry, 'NaN')], runner)
    return culprit.name


def test_numbers_become_names():
    net = toy_net()
    saved = 'optimizer.state.2.exp_avg'
    assert named(saved, wrap(net), net) == 'optimizer.norm.weight.exp_avg'
    many = OptimWrapperDict(body=wrap(net.backbone), head=wrap(net.head))
    saved = 'optimizer.head.state.1.exp_avg_sq'
    wanted = 'optimizer.head.head.bias.exp_avg_sq'
    assert named(saved, many, net) == wanted


def test_everything_else_stays():
    net = toy_net()
    for entry in ('state_dict.head.weight', 'optimizer.state.99.exp_avg'):
        assert named(entry, wrap(net), net) == entry
