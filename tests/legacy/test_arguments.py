"""mmengine knows the arguments that are handed on to it."""

from __future__ import annotations

import inspect

import pytest
from mmengine.hooks import CheckpointHook, LoggerHook, ProfilerHook
from mmengine.registry import VISBACKENDS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop

from mmstable.legacy import hooks, loops
from mmstable.legacy.translate import translate


def arguments(cls: type) -> set[str]:
    return set(inspect.signature(cls).parameters)


@pytest.mark.parametrize('hook', hooks._BACKENDS)
def test_back_ends(hook: str) -> None:
    name, shared = hooks._BACKENDS[hook]
    assert set(shared) <= arguments(VISBACKENDS.get(name))


def test_hooks() -> None:
    assert set(hooks._TEXT) <= arguments(LoggerHook)
    assert set(hooks._KEPT) <= arguments(CheckpointHook)
    assert set(loops._BEST) <= arguments(CheckpointHook)
    profiler = dict(activities=['cpu'], profile_iters=3, by_epoch=False)
    new = translate(dict(profiler_config=profiler)).settings['custom_hooks']
    assert set(new[0]) - {'type'} <= arguments(ProfilerHook)


@pytest.mark.parametrize('loop', [EpochBasedTrainLoop, IterBasedTrainLoop])
def test_loops(loop: type) -> None:
    assert set(loops._LOOP.values()) <= arguments(loop)
