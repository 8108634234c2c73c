"""What ranks tell each other about a bad step, and what is believed."""

from __future__ import annotations

import json

import pytest

from mmstable.dist import consensus as module
from mmstable.events import Culprit, Origin


@pytest.fixture(autouse=True)
def _three_ranks(monkeypatch):
    monkeypatch.setattr(module, 'get_world_size', lambda: 3)


def word(where='', culprits=(), **changes):
    said = module.StepConsensus()._word('cpu', where, culprits)
    return {**said, **changes}


def travel(value):
    return json.loads(json.dumps(value))


def test_a_word_and_its_digest_come_back():
    bad = Culprit('head.weight', 'NaN')
    words = {0: word(), 1: word('loss', [bad]), 2: word(behind=True)}
    for one in words.values():
        assert module._WORD(travel(one)) == {
            **one,
            'culprits': [tuple(pair) for pair in one['culprits']],
        }
    heard = module._read(travel(module._digest(words)))
    assert heard.loss_is_bad
    (origin,) = heard.origins
    assert (origin.rank, origin.device, origin.where) == (1, 'cpu', 'loss')
    assert heard.culprits == (bad,)
    assert heard.behind == {2}


def test_long_names_are_cut_before_they_are_sent():
    long = Culprit('layer.' * 1000, 'Inf')
    said = word(culprits=[long] * 100)
    assert len(module._WORD(travel(said))['culprits']) == 64


@pytest.mark.parametrize(
    'changes',
    [
        dict(node=3),
        dict(node='n' * 501),
        dict(device=None),
        dict(where='elsewhere'),
        dict(behind=1),
        dict(culprits={}),
        dict(culprits=[['a']]),
        dict(culprits=[['a', 'nothing']]),
        dict(culprits=[['a', 'NaN']] * 65),
        dict(sharded='yes'),
        dict(more=1),
    ],
    ids=lambda changes: repr(changes)[:40],
)
def test_a_word_that_no_rank_says(changes):
    with pytest.raises(ValueError, match='must'):
        module._WORD(travel({**word(), **changes}))


@pytest.mark.parametrize(
    'changes',
    [
        dict(loss_is_bad='yes'),
        dict(origins=[[3, 'n', 'cpu', 'loss']]),
        dict(origins=[[0, 'n', 'cpu', '']]),
        dict(origins=[[0, 'n', 'cpu']]),
        dict(origins=[[0, 'n', 'cpu', 'loss']] * 17),
        dict(culprits=[['a', 1]]),
        dict(behind=[-1]),
        dict(behind=[0, 0, 0, 0]),
        dict(behind=2),
        dict(more=1),
    ],
    ids=lambda changes: repr(changes)[:40],
)
def test_a_digest_that_no_rank_writes(changes):
    digest = module._digest({0: word('loss')})
    with pytest.raises(ValueError, match='must'):
        module._read(travel({**digest, **changes}))


def test_names_of_other_ranks_are_printable():
    digest = dict(
        loss_is_bad=True,
        origins=[[1, 'no\x1b[2Jde', 'cu\nda', 'loss']],
        culprits=[['he\u202ead', 'NaN']],
        behind=[],
    )
    heard = module._read(digest)
    assert heard.origins == (Origin(1, r'no\x1b[2Jde', r'cu\nda', 'loss'),)
    assert heard.culprits == (Culprit(r'he\u202ead', 'NaN'),)
