"""Changes that ranks ask each other for, and what they refuse."""

from __future__ import annotations

import json

import pytest
from torch.distributed import HashStore

from mmstable.dist import store
from mmstable.probe.run import AgreedChanges, check_change

GROUPS = dict(optim_wrapper=2)
GOOD = dict(what='lr', wrapper='optim_wrapper', values=[0.5, 2.0])


@pytest.fixture
def common(monkeypatch):
    """What all ranks see."""
    common = HashStore()
    monkeypatch.setattr(store, 'open_store', lambda name: common)
    return common


def rank(done):
    return AgreedChanges(
        done.append, lambda change: check_change(change, GROUPS)
    )


@pytest.mark.parametrize(
    ('forged', 'reason'),
    [
        (dict(values=[-1.0, 1.0]), '`values`: must be 1e-12 to 1e+12, got -1'),
        (dict(values=[0.0, 1.0]), '`values`: must be 1e-12 to 1e+12, got 0'),
        (dict(values=[1e300, 1.0]), '`values`: must be 1e-12 to 1e+12'),
        (dict(values=[float('nan')] * 2), '`values`: must be finite'),
        (dict(values=[float('inf')] * 2), '`values`: must be finite'),
        (dict(values=[]), '`values`: must have 2 entries, has 0'),
        (dict(values=[1.0]), '`values`: must have 2 entries, has 1'),
        (dict(values=[1.0] * 3), '`values`: must have 2 entries, has 3'),
        (dict(what='clip'), '`values`: must have 1 entries, has 2'),
        (dict(what='clip', values=[]), '`values`: must have 1 entries, has 0'),
        (dict(what='clip', values=[-1.0]), '`values`: must be 1e-12 to 1e+12'),
        (dict(what='zzz'), "`what`: must be one of 'lr', 'clip', got 'zzz'"),
        (dict(wrapper='other'), "`wrapper`: must be one of 'optim_wrapper'"),
    ],
    ids=str,
)
def test_a_change_that_no_rank_asks_for_is_made_by_none(
    common, said, forged, reason
):
    change = {**GOOD, **forged}
    common.set(
        'request/0', json.dumps(dict(after=0, token='x', change=change))
    )
    made = [[], []]
    asking, other = map(rank, made)
    for one in (asking, other):
        one.look(10)
    assert made == [[], []]
    assert len(said) == 1
    assert reason in said[0]
    # A real one takes its place.
    asking.request(GOOD)
    for iteration in (20, 30):
        for one in (asking, other):
            one.look(iteration)
    assert made == [[GOOD], [GOOD]]


def test_an_own_mistake_is_refused_at_once(common):
    with pytest.raises(ValueError, match='`values`: must have 2 entries'):
        rank([]).request(dict(GOOD, values=[]))
