"""Norms by module: out of those that a step measures anyway."""

import math

import pytest

from mmstable.optim.grad_health import MOST_MODULES, by_module
from mmstable.report import Heartbeat, read_events
from tests.toys import Sabotage, toy_runner

WRAPPERS = [
    dict(type='mmstable.SafeOptimWrapper', clip_grad=dict(max_norm=0.1)),
    dict(type='mmstable.SafeOptimWrapper'),
    dict(type='mmstable.SafeAmpOptimWrapper', dtype='bfloat16'),
    dict(type='OptimWrapper'),
]


def heartbeats(folder):
    (path,) = folder.glob('*/stability/events.jsonl')
    return [one for one in read_events(path) if isinstance(one, Heartbeat)]


@pytest.mark.parametrize('wrapper', WRAPPERS, ids=lambda one: one['type'])
def test_they_make_up_the_norm_of_the_step(tmp_path, wrapper):
    wrapper = dict(wrapper, optimizer=dict(type='SGD', lr=0.1))
    hook = dict(type='mmstable.EventLogHook', interval=1)
    toy_runner(tmp_path, wrapper, max_iters=3, hooks=[hook]).train()
    for beat in heartbeats(tmp_path):
        sample = beat.wrappers['optim_wrapper']
        norms = sample.module_norms
        assert set(norms) == {'net.backbone', 'net.norm', 'net.head'}
        whole = math.sqrt(sum(norm**2 for norm in norms.values()))
        assert whole == pytest.approx(sample.grad_norm, rel=1e-5)
        if 'clip_grad' in wrapper:
            assert sample.clipped_norm == pytest.approx(0.1, rel=1e-3)


def test_a_bad_step_leaves_those_of_the_last_good_one(tmp_path):
    hook = dict(type='mmstable.EventLogHook', interval=1)
    hooks = [Sabotage(loss=[2]), hook]
    toy_runner(tmp_path, max_iters=2, hooks=hooks).train()
    first, second = heartbeats(tmp_path)
    norms = [
        one.wrappers['optim_wrapper'].module_norms for one in (first, second)
    ]
    assert norms[0] == norms[1]


def test_modules_are_as_deep_as_there_is_room_for():
    few = {
        'backbone.layer1.conv.weight': 3.0,
        'backbone.layer1.conv.bias': 4.0,
    }
    assert by_module(few, 2.0) == {'backbone.layer1.conv': 5.0}
    many = {f'backbone.layer1.{i}.weight': 1.0 for i in range(100)}
    assert by_module(many, 2.0) == {'backbone.layer1': 10.0}
    wide = {f'part{i}.weight': 1.0 for i in range(100)}
    assert len(by_module(wide, 2.0)) == MOST_MODULES
    assert by_module({'a.weight': math.inf, 'b.weight': 1.0}, 2.0) == {
        'b': 1.0
    }
    assert by_module({}, 2.0) == {}
