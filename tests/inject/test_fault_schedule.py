"""Faults come when they are due, also in a resumed run."""

from __future__ import annotations

import pytest

from mmstable.inject.plan import Schedule, draw
from tests.inject.runs import (
    injected,
    train,
)


def test_probability_is_the_same_after_a_resume(tmp_path):
    fault = dict(kind='nan_loss', probability=0.4, between=[2, 19])
    settings = dict(max_iters=20, seed=1)
    whole = injected(train(tmp_path / 'whole', fault, **settings))
    checkpoints = dict(
        checkpoint=dict(type='CheckpointHook', interval=10, by_epoch=False)
    )
    train(tmp_path / 'part', fault, default_hooks=checkpoints, **settings)
    rest = train(
        tmp_path / 'rest',
        fault,
        load_from=str(tmp_path / 'part' / 'iter_10.pth'),
        resume=True,
        **settings,
    )
    late = [t for t in whole if t[0] > 10]
    assert injected(rest) == late
    assert 0 < len(late) < len(whole)
    others = injected(train(tmp_path / 'other', fault, max_iters=20, seed=2))
    assert others != whole


def test_draws_are_even_and_independent():
    schedule = Schedule(probability=0.3)
    hits = [
        [i for i in range(4000) if schedule.is_due(i, rank, 0, index)]
        for rank, index in ((0, 0), (1, 0), (0, 1))
    ]
    for some in hits:
        assert len(some) == pytest.approx(1200, rel=0.1)
    common = len(set(hits[0]) & set(hits[1]))
    assert common == pytest.approx(360, rel=0.2)
    assert draw(1, 2) == draw(1, 2) != draw(2, 1)
