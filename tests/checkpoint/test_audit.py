from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from mmstable.checkpoint.audit import (
    Placeholders,
    find_poison,
    looks_like_mask,
)
from tests.toys import INF, NAN


def counts(model: nn.Module) -> dict:
    placeholders = Placeholders()
    placeholders.learn(model)
    return placeholders.audit({})[1]


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        mask = torch.full((3, 3), -INF).triu(1)
        self.register_buffer('mask', mask)


def checkpoint_of(model: nn.Module) -> dict:
    optimizer = torch.optim.Adam(model.parameters())
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()
    copied = copy.deepcopy(model.state_dict())
    return dict(
        meta=dict(lr=NAN),
        state_dict=model.state_dict(),
        ema_state_dict={f'module.{k}': v for k, v in copied.items()},
        optimizer=optimizer.state_dict(),
        message_hub=dict(log_scalars=torch.tensor([NAN])),
    )


def test_healthy_state_has_no_poison():
    model = Masked()
    known = counts(model)
    assert known == {'mask': (0, 3)}
    assert find_poison(checkpoint_of(model), known) == []
    # A file of somebody else has no list; a mask looks like a mask.
    assert find_poison(checkpoint_of(model)) == []


@pytest.mark.parametrize('value', [NAN, INF, -INF])
@pytest.mark.parametrize(
    'dtype', [torch.float32, torch.float16, torch.float64]
)
@pytest.mark.parametrize(
    'path',
    [
        ('state_dict', 'layer.weight'),
        ('state_dict', 'norm.running_var'),
        ('ema_state_dict', 'module.layer.bias'),
        ('optimizer', 'state', 1, 'exp_avg_sq'),
    ],
)
def test_poison_is_named(path, value, dtype):
    model = Masked()
    checkpoint = checkpoint_of(model)
    place = checkpoint
    for key in path[:-1]:
        place = place[key]
    bad = place[path[-1]].to(dtype).clone()
    bad.view(-1)[1] = value
    bad.view(-1)[2] = 7
    place[path[-1]] = bad
    name = '.'.join(map(str, path))
    kind = 'NaN' if math.isnan(value) else 'Inf'
    for known in (counts(model), None):
        assert find_poison(checkpoint, known) == [(name, kind)]


def test_mask_may_not_get_worse():
    model = Masked()
    known = counts(model)
    model.mask[2, 0] = -INF
    found = find_poison(checkpoint_of(model), known)
    assert [name for name, _ in found] == [
        'state_dict.mask',
        'ema_state_dict.module.mask',
    ]
    model.mask[2, 0] = NAN
    assert find_poison(checkpoint_of(model))[0] == ('state_dict.mask', 'NaN')


def test_optimizer_has_no_masks():
    state = dict(state={0: dict(exp_avg=torch.tensor([0.0, INF]))})
    for known in ({}, None):
        assert find_poison(dict(optimizer=state), known) == [
            ('optimizer.state.0.exp_avg', 'Inf')
        ]


def test_a_single_number_of_an_optimizer_may_be_inf():
    states = {n: dict(best=torch.tensor(INF)) for n in range(2)}
    checkpoint = dict(optimizer=dict(state=states))
    assert find_poison(checkpoint) == []
    states[1]['best'] = torch.tensor(NAN)
    assert find_poison(checkpoint) == [('optimizer.state.1.best', 'NaN')]
    # The moment of a parameter that is a single number itself.
    states[1]['best'] = torch.zeros(3)
    assert find_poison(checkpoint) == [('optimizer.state.0.best', 'Inf')]


@pytest.mark.parametrize(
    'values, is_mask',
    [
        ([0.0, -INF], True),
        ([1.0, 1.0, INF], True),
        ([0.3, INF], False),
        ([INF, INF], False),
        ([0.0, 1.0, -INF], False),
    ],
)
def test_what_looks_like_a_mask(values, is_mask):
    assert looks_like_mask(torch.tensor(values)) is is_mask


def test_huge_finite_values_are_fine():
    weight = torch.full((4,), 3e38)
    assert find_poison(dict(state_dict=dict(weight=weight))) == []


def test_other_content_is_left_alone():
    state = dict(count=torch.tensor(3), text='a', items=[1, None])
    assert find_poison(dict(state_dict=state, optimizer={})) == []
    assert find_poison({}) == []
