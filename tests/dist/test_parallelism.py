"""How gradients are shared, as far as one process can tell."""

from __future__ import annotations

import pytest
import torch

from mmstable.dist import consensus
from mmstable.dist.collectives import (
    Shards,
    Sharing,
    find_shards,
    find_sharing,
)
from mmstable.dist.consensus import StepConsensus
from mmstable.errors import ReplicasDivergedError
from tests.toys import NAN, toy_net


def test_one_process_shares_nothing():
    net = toy_net()
    assert find_sharing(net) is Sharing.ALONE
    assert find_shards(net) == Shards()


def test_what_others_count_is_not_counted_again():
    params = list(toy_net().parameters())
    norms = torch.arange(1.0, len(params) + 1)
    shards = Shards(repeated={id(params[1]), id(params[2])})
    counted = shards.count_once(params, norms)
    assert counted.tolist()[:4] == [1.0, 0.0, 0.0, 4.0]
    assert norms[1] == 2.0
    # But a NaN is seen by all who hold it.
    norms[2] = NAN
    assert torch.isnan(shards.count_once(params, norms)[2])
    assert Shards().count_once(params, norms) is norms


def test_wrappers_of_one_model_do_not_share_a_topic(monkeypatch):
    monkeypatch.setattr(
        consensus, 'find_sharing', lambda model: Sharing.REDUCED
    )
    topics = []
    for _ in range(2):
        ranks = StepConsensus()
        for _ in range(2):
            ranks.bind_model(toy_net(), asked_for_shards=False)
        topics.append(ranks._topic)
    first, second = (topic.split('/') for topic in topics)
    assert first[0] == second[0]
    assert int(second[1]) == int(first[1]) + 1


def test_a_rank_that_is_left_alone_twice_gives_up(monkeypatch):
    monkeypatch.setattr(consensus, 'get_world_size', lambda: 2)
    monkeypatch.setattr(consensus, 'gather', lambda *args: None)
    ranks = StepConsensus()
    ranks.sharing = Sharing.REDUCED
    assert ranks.resolve_bad(True, 'cpu') is None
    assert ranks.is_behind
    with pytest.raises(ReplicasDivergedError, match='has missed an update'):
        ranks.resolve_bad(True, 'cpu')
