"""From spans to shares, and timers that leave nothing behind."""

from __future__ import annotations

import copy
import io
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mmstable.hooks.step_hook import QuietHook
from mmstable.profile.measure import (
    Instruments,
    Mark,
    Span,
    SpanRecorder,
    device_clock,
    gpu_busy,
    summarize,
)

BEFORE, AFTER = 'before_train_iter', 'after_train_iter'


def span(kind, name, start, stop, cpu=0.0, is_inner=False) -> Span:
    return Span(kind, name, start, stop, cpu, is_inner)


def iteration(begin: float) -> list[Span]:
    """4 s of data, 1 of hooks, 2 of forward, 2 of backward, 1 of step."""
    return [
        span(BEFORE, 'A', begin + 4.0, begin + 4.2, cpu=begin + 3),
        span(BEFORE, 'B', begin + 4.2, begin + 4.5),
        span('module', 'net', begin + 4.6, begin + 6.0),
        span('module', 'net.a', begin + 4.7, begin + 5.0),
        span('module', 'net.a', begin + 5.0, begin + 5.3),
        span('backward', 'w', begin + 6.5, begin + 8.5),
        span('step', 'w', begin + 8.5, begin + 9.4),
        span('step', 'w', begin + 9.4, begin + 9.5),
        span(AFTER, 'A', begin + 9.5, begin + 10.0),
        # What a hook does counts as the hook.
        span('step', 'w', begin + 9.6, begin + 9.9, is_inner=True),
    ]


def test_the_parts_add_up():
    spans = [*iteration(0), *iteration(10)]
    marks = [Mark(0, 0), Mark(10, 10), Mark(20, 20)]
    found = summarize(spans, marks)
    assert (found.iterations, found.seconds) == (2, 10.0)
    assert found.phases == pytest.approx(
        dict(data=4, forward=2, backward=2, step=1, hooks=1, other=0)
    )
    assert found.hooks == pytest.approx({'A': 0.7, 'B': 0.3})
    assert found.modules == pytest.approx({'net': 1.4, 'net.a': 0.6})
    assert list(found.hooks) == ['A', 'B']
    assert found.data_share == pytest.approx(0.4)
    assert found.data_cpu == pytest.approx(3)


def test_validation_and_late_hooks_are_no_waiting_for_data():
    late = span(AFTER, 'Late', 0.0, 0.5)
    epoch = span('after_train_epoch', 'Late', 0.5, 1.0)
    validation = span('validation', '', 1.0, 3.0)
    found = summarize(
        [late, epoch, validation, *iteration(0)], [Mark(0, 0), Mark(10, 10)]
    )
    assert found.seconds == pytest.approx(8)
    assert found.phases['data'] == pytest.approx(1)
    assert found.hooks['Late'] == pytest.approx(1)


def test_a_compiled_step_is_one_phase():
    spans = [s for s in iteration(0) if s.kind in (BEFORE, AFTER)]
    found = summarize(spans, [Mark(0, 0), Mark(10, 10)], sees_inside=False)
    assert found.phases == pytest.approx(
        dict(data=4, train_step=5, hooks=1, other=0)
    )


def test_a_device_is_waited_for(monkeypatch):
    waited = []
    fake = SimpleNamespace(synchronize=lambda: waited.append(1))
    monkeypatch.setattr(torch, 'faketype', fake, raising=False)
    clock = device_clock(SimpleNamespace(type='faketype'))
    assert clock() <= clock()
    assert len(waited) == 2
    device_clock(torch.device('cpu'))()
    assert len(waited) == 2


class Slotted:
    __slots__ = ()

    def after_train_iter(self):
        return 3


class Plain:
    def after_train_iter(self):
        return 4

    def before_train_iter(self):
        raise KeyError('mine')


def test_timers_are_taken_off():
    replaced = Plain()
    replaced.before_train_iter = own = lambda: 5
    hooks = [Plain(), Slotted(), replaced]
    recorder = SpanRecorder(device_clock(torch.device('cpu')))
    instruments = Instruments(recorder)
    instruments.watch_hooks(hooks)
    assert [hook.after_train_iter() for hook in hooks] == [4, 3, 4]
    assert replaced.before_train_iter() == 5
    with pytest.raises(KeyError, match='mine'):
        hooks[0].before_train_iter()
    kept = hooks[0].after_train_iter
    instruments.remove()
    assert vars(hooks[0]) == {}
    assert vars(replaced) == {'before_train_iter': own}
    names = [(s.kind, s.name) for s in recorder.spans]
    assert names == [
        (AFTER, 'Plain'),
        (AFTER, 'Plain'),
        (BEFORE, 'Plain'),
        (BEFORE, 'Plain'),
    ]
    assert kept() == 4
    assert len(recorder.spans) == 4


def test_a_stage_that_a_hook_has_for_a_while_is_timed():
    hook = QuietHook()
    assert not hasattr(hook, AFTER)
    hook.after_train_iter = own = lambda: 6
    recorder = SpanRecorder(device_clock(torch.device('cpu')))
    instruments = Instruments(recorder)
    instruments.watch_hooks([hook])
    assert not hasattr(hook, BEFORE)
    assert hook.after_train_iter() == 6
    instruments.remove()
    assert hook.after_train_iter is own
    assert [one.kind for one in recorder.spans] == [AFTER]


def test_modules_to_a_depth_but_not_those_of_copies():
    model = nn.ModuleDict({'a': nn.Sequential(nn.Linear(2, 2), nn.ReLU())})
    recorder = SpanRecorder(device_clock(torch.device('cpu')))
    instruments = Instruments(recorder)
    instruments.watch_modules(model, depth=2)
    copied = copy.deepcopy(model)
    saved = io.BytesIO()
    torch.save(model, saved)
    copied['a'](torch.ones(1, 2))
    assert recorder.spans == []
    model['a'](torch.ones(1, 2))
    assert [s.name for s in recorder.spans] == ['a.0', 'a.1', 'a']
    instruments.remove()
    assert not any(m._forward_hooks for m in model.modules())
    assert not any(m._forward_pre_hooks for m in model.modules())
    recorder.spans.clear()
    Instruments(recorder).watch_modules(model, depth=1)
    model['a'](torch.ones(1, 2))
    assert [s.name for s in recorder.spans] == ['a']


def test_a_module_that_fails_leaves_no_open_span():
    recorder = SpanRecorder(device_clock(torch.device('cpu')))
    outer = recorder.begin('backward', 'w')
    recorder.begin('step', 'w')
    recorder.end(outer)
    assert [s.kind for s in recorder.spans] == ['backward']
    again = recorder.begin('module', 'a')
    recorder.end(again)
    assert recorder.spans[-1].is_inner is False


def test_other_threads_and_recomputed_modules_do_not_count():
    recorder = SpanRecorder(device_clock(torch.device('cpu')))
    thread = threading.Thread(target=recorder.begin, args=('module', 'a'))
    thread.start()
    thread.join()
    token = recorder.begin('backward', 'w')
    assert recorder.begin('module', 'a') is None
    recorder.end_module('a')
    recorder.end(token)
    assert [s.kind for s in recorder.spans] == ['backward']


def no_library(device):
    raise ModuleNotFoundError('nvidia-ml-py is not installed')


def test_the_utilization_of_a_gpu(monkeypatch):
    device = torch.device('cuda', 1)
    monkeypatch.setattr(torch.cuda, 'utilization', lambda one: 90 + one.index)
    assert gpu_busy(device) == 91
    assert gpu_busy(torch.device('cpu')) is None
    monkeypatch.setattr(torch.cuda, 'utilization', no_library)
    assert gpu_busy(device) is None
