"""The parts that need no run: ranges, batches, frames, chains, points."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from mmengine.structures import BaseDataElement
from torch import nn

from mmstable.batch import (
    batch_size,
    name_sample,
    named_tensors,
    take_samples,
)
from mmstable.events.records import Verdict
from mmstable.forensics.domain import domain_error
from mmstable.forensics.find_cause import blame_samples, judge
from mmstable.forensics.frames import (
    FINITE,
    INF,
    NAN,
    Place,
    current_place,
    measure,
    module_names,
    severity,
)
from mmstable.forensics.replay import StepInputs
from mmstable.forensics.trace import (
    Origin,
    OriginTracer,
    find_culprit,
    follow,
)

nan, inf = math.nan, math.inf


@pytest.mark.parametrize('dtype', [torch.float16, torch.float32])
def test_a_range_tells_what_is_in_a_tensor(dtype):
    values = torch.tensor([[1.0, -2, 0], [nan, inf, -inf]], dtype=dtype)
    found = measure(values)
    assert (found.low, found.high, found.zeros) == (-2, 1, 1)
    assert (found.nans, found.infs, found.minus_infs) == (1, 2, 1)
    assert (found.kind, found.peak, found.bad_share) == ('NaN', 2, 0.5)
    name = str(dtype).replace('torch.', '')
    assert str(found) == f'{name}[2, 3] -2..1 (1 NaN and 2 Inf of 6)'


@pytest.mark.parametrize(
    ('values', 'level'),
    [
        (torch.ones(2), FINITE),
        (torch.tensor([1.0, inf]), INF),
        (torch.tensor([inf, nan]), NAN),
        (torch.tensor([1, 2]), FINITE),
        (torch.tensor([]), FINITE),
        (torch.tensor([complex(0, nan)]), NAN),
        (torch.eye(2).to_sparse(), FINITE),
        (torch.empty(2, device='meta'), FINITE),
    ],
)
def test_how_bad_a_tensor_is(values, level):
    assert severity(values) == level
    measure(values)


def test_a_mask_is_nothing_but_zeros_and_minus_infinity():
    assert measure(torch.tensor([0, -inf])).looks_like_mask
    for values in ([0, inf], [1, -inf], [0.0], [nan, -inf]):
        assert not measure(torch.tensor(values)).looks_like_mask


def sample(**meta):
    return BaseDataElement(metainfo=meta)


@pytest.mark.parametrize(
    ('batch', 'size'),
    [
        (dict(inputs=torch.ones(3, 2)), 3),
        (dict(n=1, inputs=[torch.ones(2)] * 3), 3),
        ([torch.ones(3, 2), torch.ones(3)], 3),
        ([dict(a=1), dict(a=2)], 2),
        (dict(sup=dict(inputs=[1, 2])), 2),
        (torch.ones(4), 4),
        ({}, 0),
        (None, 0),
    ],
)
def test_the_size_of_a_batch(batch, size):
    assert batch_size(batch) == size


def test_samples_are_taken_from_all_parts():
    batch = dict(
        inputs=[torch.tensor([i]) for i in range(3)],
        data_samples=[sample(i=i) for i in range(3)],
        targets=torch.arange(3),
        names=('a', 'b', 'c'),
        classes=torch.ones(5),
    )
    some = take_samples(batch, [0, 2])
    assert [int(one) for one in some['inputs']] == [0, 2]
    assert [one.i for one in some['data_samples']] == [0, 2]
    assert some['targets'].tolist() == [0, 2]
    assert some['names'] == ['a', 'c']
    assert len(some['classes']) == 5
    pair = take_samples([torch.arange(3), torch.arange(3)], [1])
    assert [one.tolist() for one in pair] == [[1], [1]]


@pytest.mark.parametrize(
    ('batch', 'name'),
    [
        (dict(a=[1, 2], b=[sample(img_path='x'), sample(img_path='y')]), 'y'),
        (dict(inputs=torch.ones(2), lidar_path=['x', 'y']), 'y'),
        (dict(inputs=torch.ones(2), sample_idx=torch.tensor([4, 5])), '5'),
        ([dict(id=7), dict(id=8)], '8'),
    ],
)
def test_samples_have_names(batch, name):
    assert name_sample(batch, 1).endswith(f'={name}')


def test_a_sample_may_have_no_name():
    assert name_sample(dict(inputs=torch.ones(2, 3)), 1) == ''


def test_paths_of_tensors():
    batch = dict(inputs=[torch.ones(1)], data_samples=[sample()])
    batch['data_samples'][0].boxes = torch.ones(2)
    assert [path for path, _ in named_tensors(batch)] == [
        'inputs[0]',
        'data_samples[0].boxes',
    ]


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()


class Inner(nn.Module):
    def forward(self, names):
        return current_place(names)


def test_a_place_is_the_innermost_module_and_line():
    model = Outer()
    place = model.inner(module_names(model))
    assert place.module == 'inner'
    (line,) = place.lines
    assert line.text == 'return current_place(names)'
    assert str(line).startswith('tests/forensics/test_parts.py:')


def origin(order, op='aten.log.default', parents=(), **facts):
    values = measure(torch.tensor([nan]))
    defaults = dict(kind='NaN', phase='forward', place=Place(), inputs=())
    facts = {**defaults, 'output': values, **facts}
    return Origin(order=order, op=op, parents=tuple(parents), **facts)


def test_the_earliest_is_to_blame_unless_it_was_intended():
    mask = origin(1, is_intended=True)
    first, other = origin(2, parents=[mask]), origin(3)
    last = origin(4, parents=[first, first])
    assert follow([last]) == [mask, first, last]
    assert find_culprit(follow([last])) is first
    assert find_culprit(follow([other])) is other
    assert find_culprit([mask]) is mask
    assert find_culprit([]) is None


def ranges(*values):
    return tuple(measure(torch.tensor(one)) for one in values)


@pytest.mark.parametrize(
    ('op', 'inputs', 'kind', 'point'),
    [
        ('log', [[0.0, 1]], 'Inf', 'log_zero'),
        ('log', [[-1.0, 1]], 'NaN', 'log_negative'),
        ('log1p', [[-1.0]], 'Inf', 'log_zero'),
        ('div', [[0.0], [0.0]], 'NaN', 'zero_by_zero'),
        ('div_', [[1.0], [0.0]], 'Inf', 'by_zero'),
        ('div', [[1e38], [1e-5]], 'Inf', None),
        ('div', [[1.0], [1e-40]], 'Inf', 'by_almost_zero'),
        ('logit', [[0.0, 0.5]], 'Inf', 'undefined'),
        ('exp', [[100.0]], 'Inf', None),
        ('sum', [[1e38, 3e38]], 'Inf', None),
        ('sqrt', [[-1.0]], 'NaN', 'root_negative'),
        ('rsqrt', [[0.0]], 'Inf', 'by_zero'),
        ('pow', [[-1.0], [0.5]], 'NaN', 'pow_negative'),
        ('pow', [[0.0], [-1.0]], 'Inf', 'by_zero'),
        ('pow', [[1e30], [2.0]], 'Inf', None),
        ('acos', [[1.5]], 'NaN', 'outside_one'),
        ('atanh', [[1.0]], 'Inf', 'outside_one'),
        ('_softmax', [[-inf, 1.0]], 'NaN', 'masked_row'),
        ('var', [[1.0]], 'NaN', 'one_value'),
        ('mean', [[]], 'NaN', 'empty'),
        ('nll_loss_forward', [[1.0], [255]], 'NaN', 'no_target'),
        ('erfinv', [[2.0]], 'NaN', 'outside_one'),
        ('mystery', [[2.0]], 'NaN', 'undefined'),
        ('mm', [[1e30], [1e30]], 'NaN', None),
        ('exp', [[100.0]], 'Inf', None),
    ],
)
def test_domain_errors(op, inputs, kind, point):
    one = origin(1, f'aten.{op}.x', inputs=ranges(*inputs), kind=kind)
    found = domain_error(one)
    assert (None if found is None else found.name) == point


def test_verdicts():
    one = origin(1, inputs=ranges([0.0]))
    point = domain_error(one)
    weight = replace(one, op='', source='parameter', name='w')
    assert judge(weight, None, False) is Verdict.BAD_WEIGHTS
    data = replace(weight, source='batch')
    assert judge(data, None, True) is Verdict.BAD_INPUT
    assert judge(one, point, False) is Verdict.DOMAIN_ERROR
    assert judge(one, point, True) is Verdict.FP16_UNDERFLOW
    assert judge(one, None, True) is Verdict.FP16_OVERFLOW
    assert judge(one, None, False) is Verdict.EXPLODING


INPUTS = StepInputs(nn.Identity(), dict(inputs=torch.ones(6, 1)), {})


@pytest.mark.parametrize(
    ('rows', 'is_bad', 'expected'),
    [
        # Rows that are right.
        ((2,), lambda some: 2 in some, ((2,), False)),
        # Rows by chance: the output has the size of the batch.
        ((0, 4), lambda some: 2 in some, ((2,), False)),
        (tuple(range(6)), lambda some: 2 in some, ((2,), False)),
        # Two bad ones, and no hint.
        ((), lambda some: 1 in some or 5 in some, ((1, 5), False)),
        # All of them.
        ((), lambda some: True, (tuple(range(6)), False)),
        # Any single sample is bad, because a statistic needs two.
        ((), lambda some: 3 in some or len(some) == 1, ((3,), False)),
        # Only together.
        ((), lambda some: {1, 4} <= set(some), ((1, 4), True)),
        ((), lambda some: len(some) == 6, (tuple(range(6)), True)),
    ],
)
def test_samples_are_found(rows, is_bad, expected):
    found = blame_samples(INPUTS, origin(1, rows=rows), is_bad)
    assert (found.indices, found.only_together) == expected


def test_memory_that_is_used_again_is_not_blamed():
    model = nn.Linear(2, 2)
    with OriginTracer(model) as mode:
        for _ in range(20):
            bad = torch.zeros(8).log()
            del bad
            good = torch.ones(8) * 2
        worse = good.log() / 0
    (only,) = {one.op for one in follow(mode.origins_of(worse))}
    assert only == 'aten.div.Tensor'


def test_bad_values_that_are_overwritten_are_forgotten():
    with OriginTracer(nn.Linear(2, 2)) as mode:
        x = torch.zeros(4).log()
        x.nan_to_num_(neginf=0.0)
        x[1:2] = float('nan')
        fine, bad = x[2:3] + 1, x[1:2] + 1
    assert mode.origins_of(fine) == ()
    assert all(one.kind == 'NaN' for one in mode.origins_of(bad))


def test_constants_are_wanted_if_they_are_infinite():
    with OriginTracer(nn.Linear(2, 2)) as mode:
        wanted = torch.tensor([inf, 1.0]) * 2
        lost = wanted - wanted
        odd = torch.tensor([nan]) * 2
    mask, first = follow(mode.origins_of(lost))
    assert mask.is_intended
    assert find_culprit([mask, first]) is first
    (only,) = follow(mode.origins_of(odd))
    assert (only.source, only.kind) == ('outside', 'NaN')
