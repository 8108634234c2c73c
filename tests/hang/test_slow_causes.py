"""What makes training slow, judged by figures."""

from __future__ import annotations

import random
import re
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from mmstable.profile.causes import (
    Between,
    RankTimes,
    Sample,
    describe_causes,
    describe_profile,
    describe_validation,
    find_causes,
    slowest_transform,
)
from mmstable.profile.measure import Loading, Mark, Profile, Span, summarize

HEALTHY = dict(data=0.01, forward=0.3, backward=0.6, step=0.05, hooks=0.04)


def sample(workers=2, cores=8, loading='busy', kernel='', **given) -> Sample:
    fields = {
        name: given.pop(name)
        for name in ('between', 'ranks', 'gpu_busy')
        if name in given
    }
    known = dict(iterations=10, seconds=1.0, phases=HEALTHY)
    profile = Profile(**{**known, **given})
    return Sample(profile, Loading(loading, kernel), workers, cores, **fields)


def waiting(share: float, **given) -> Sample:
    rest = 1 - share
    phases = dict(data=share, forward=rest, backward=0.0, step=0.0, hooks=0.0)
    return sample(phases=phases, **given)


def told(one: Sample) -> str:
    return ' '.join(describe_causes(one, find_causes(one)))


def test_nothing_stands_out():
    assert find_causes(sample()) == []
    text = describe_profile(60, sample(gpu_busy=97), [])
    assert text == (
        'Iter 60: 1000.0 ms per iteration (mean of 10): data 1 %, forward '
        '30 %, backward 60 %, step 5 %, hooks 4 %, GPU 97 %. Nothing stands '
        'out.'
    )


def test_busy_workers():
    assert told(waiting(0.62)) == (
        'Training waits for data 62 % of the time: workers are busy on 8 '
        'cores; raise num_workers 2 -> 6.'
    )


@pytest.mark.parametrize(
    ('given', 'text'),
    [
        (dict(cores=4), 'raise num_workers 2 -> 4'),
        (
            dict(cores=2),
            '2 workers are busy, and the machine has only 2 cores',
        ),
        (
            dict(loading='disk', kernel='io_schedule'),
            r'workers are idle on disk \(io_schedule\); .*num_workers 2 -> 6',
        ),
        (
            # No more workers than cores.
            dict(loading='disk', cores=2),
            'workers are idle on disk; copy the data .* few large files.$',
        ),
        (dict(loading='idle'), 'workers are idle: they compute nothing'),
        (dict(loading='starting'), 'restarted in .*persistent_workers=True'),
        (
            dict(loading='pause', workers=0),
            "IterBasedTrainLoop sleeps .* type='mmstable.SafeIterBased",
        ),
        (dict(loading=''), r'the cause is unknown .*\(num_workers=2\)'),
        (
            dict(workers=0, loading='main', data_cpu=0.31),
            'num_workers=0 loads it .* computes for 50 % .* num_workers=2 ',
        ),
    ],
)
def test_why_data_is_late(given, text):
    one = waiting(0.62, **given)
    assert find_causes(one)[0].kind == 'data'

    assert re.search(text, told(one)), told(one)


def test_less_than_a_fifth_is_no_cause():
    assert find_causes(waiting(0.19)) == []


def test_the_smallest_module_that_takes_so_much_is_named():
    modules = {'backbone': 0.8, 'backbone.layer3': 0.7, 'head': 0.05}
    one = sample(modules=modules)
    assert told(one) == (
        'The forward pass of backbone.layer3 takes 70 % of the time.'
    )
    one = sample(modules={'backbone': 0.5, 'backbone.layer3': 0.3})
    assert 'forward pass of backbone takes 50 %' in told(one)


def test_a_hook_and_a_step():
    one = sample(
        usual_hooks={'Mine': 0.3, 'Other': 0.1},
        phases={**HEALTHY, 'step': 0.4},
    )
    assert [cause.kind for cause in find_causes(one)] == ['step', 'hook']
    assert told(one) == (
        'The optimizer takes 40 % of the time: try fused=True, or '
        'accumulative_counts. The hook Mine takes 30 % of the time.'
    )


def test_one_save_in_a_sample_is_no_slow_hook():
    spans, marks = [], [Mark(0.0, 0.0)]
    for number in range(9):
        begin = float(number)
        # A replay in one iteration takes as long as nine of them.
        stop = begin + (9.0 if number == 4 else 0.95)
        marks.append(Mark(stop, 0.0))
        spans += [
            Span('before_train_iter', 'Mine', begin, begin, 0.0, False),
            Span('after_train_iter', 'Slow', stop - 0.5, stop, 0.0, False),
            Span('after_train_iter', 'RunMonitor', stop, stop, 0.0, False),
        ]
        if number == 4:
            spans[-1].start = begin + 0.5
    marks = [Mark(float(n), 0.0) for n in range(10)]
    profile = summarize(spans, marks)
    assert profile.hooks['RunMonitor'] > 0.5
    assert profile.usual_hooks['RunMonitor'] == 0.0
    assert profile.usual_hooks['Slow'] == pytest.approx(0.5)
    one = sample(
        hooks=profile.hooks, usual_hooks=profile.usual_hooks, seconds=1.0
    )
    assert [cause.name for cause in find_causes(one)] == ['Slow']


class Quick:
    def __call__(self, results):
        return {**results, 'quick': True}


class Slow(Quick):
    def __call__(self, results):
        time.sleep(0.02)
        random.random()
        return super().__call__(results)


class Piped:
    def __init__(self, *transforms):
        self.pipeline = SimpleNamespace(transforms=transforms)

    def get_data_info(self, index):
        return dict(index=index)


def test_the_slowest_transform_is_named_and_leaves_no_trace():
    random.seed(3)
    before = random.getstate()
    wrapped = SimpleNamespace(dataset=Piped(Quick(), Slow(), Quick()))
    found = slowest_transform(wrapped)
    assert re.fullmatch(r'Slow \(\d+ %\)', found)
    assert random.getstate() == before
    assert slowest_transform(object()) == ''
    assert slowest_transform(Piped(lambda results: 1 / 0)) == ''
    one = replace(waiting(0.62), transform=found)
    assert 'the slowest transform is Slow (' in told(one)


def test_a_slow_validation_is_described_after_the_first_one():
    assert describe_validation(0.29) == ''
    assert describe_validation(0.5).startswith('Validation takes 50 %')


def test_a_long_backward_pass():
    phases = dict(data=0.01, forward=0.14, backward=0.85, step=0.0, hooks=0.0)
    one = sample(phases=phases)
    assert told(one).startswith('The backward pass takes 85 % of the time')


def test_a_straggler():
    even = RankTimes(0.1, 0.2, 0.01)
    one = sample(ranks=[even, even._replace(data=0.5), even])
    (cause,) = find_causes(one)
    assert (cause.kind, cause.number, cause.name) == ('straggler', 1, 'data')
    assert told(one) == (
        'Rank 1 is 400 ms slower than the other ranks in every iteration '
        '(data); they wait for it (40 % of the time).'
    )
    assert find_causes(sample(ranks=[even, even, even])) == []
    phases = dict(data=0.01, forward=0.14, backward=0.85, step=0.0, hooks=0.0)
    waits = replace(one, profile=replace(one.profile, phases=phases))
    assert [cause.kind for cause in find_causes(waits)] == ['straggler']
    assert find_causes(sample(ranks=[even])) == []


def test_what_happens_between_samples():
    usual = Between(1000.0, 100.0, 890, 2, 1)
    assert find_causes(sample(between=usual)) == []
    long = replace(sample(), between=Between(1000.0, 400.0, 590))
    assert 'Validation takes 40 % of the time' in told(long)
    rare = replace(sample(), between=Between(1000.0, 0.0, 600, 3, 1))
    assert told(rare).startswith(
        '40 % of the time is spent outside the sampled iterations: 3 '
        'checkpoints were saved and 1 epoch was started'
    )


def test_three_causes_are_enough():
    one = replace(
        waiting(0.3, hooks={'Mine': 0.25}, modules={'a': 0.41}),
        between=Between(100.0, 35.0, 60),
    )
    shares = [cause.share for cause in find_causes(one)]
    assert shares == sorted(shares, reverse=True)
    assert len(shares) == 3
