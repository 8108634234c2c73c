"""Words between ranks, with threads in place of processes."""

from __future__ import annotations

import threading
import time

import pytest
from torch.distributed import HashStore, PrefixStore

from mmstable.distributed import heartbeat, store
from mmstable.distributed.heartbeat import PeerWatch


@pytest.fixture
def ranks(monkeypatch):
    """Three ranks that share a store; each thread says which it is."""
    common, here = HashStore(), threading.local()

    def open_store(name):
        # Every rank counts its own meetings and watches.
        return PrefixStore(name.split('/')[0], common)

    for module in (store, heartbeat):
        monkeypatch.setattr(module, 'open_store', open_store)
        monkeypatch.setattr(module, 'get_rank', lambda: here.rank)
        monkeypatch.setattr(module, 'get_world_size', lambda: 3)
    return here


def in_threads(here, count, work):
    answers = {}

    def run(rank):
        here.rank = rank
        answers[rank] = work(rank)

    threads = [threading.Thread(target=run, args=(r,)) for r in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    return answers


def test_all_who_meet_hear_the_same(ranks):
    answers = in_threads(
        ranks, 3, lambda rank: store.meet('a', {'rank': rank}, 20.0)
    )
    words = [{'rank': 0}, {'rank': 1}, {'rank': 2}]
    assert answers == {0: words, 1: words, 2: words}


def test_who_stays_away_is_missed_by_all(ranks):
    answers = in_threads(ranks, 2, lambda rank: store.meet('b', rank, 0.2))
    assert answers == {0: None, 1: None}
    # Too late: what the others were told holds.
    ranks.rank = 2
    assert store.meet('b', 2, 20.0) is None


def test_only_the_digest_is_told(ranks):
    answers = in_threads(ranks, 3, lambda rank: store.meet('c', rank, 20, max))
    assert answers == {0: 2, 1: 2, 2: 2}


class Watched:
    """Three watches, and what they heard."""

    def __init__(self, here, lost_after=60.0):
        self.heard = {}
        self.watches = []
        for rank in range(3):
            here.rank = rank
            watch = PeerWatch(
                lambda failure, rank=rank: self.hear(rank, failure),
                0.02,
                lost_after,
            )
            self.watches.append(watch)
            watch.start()

    def hear(self, rank, failure):
        self.heard[rank] = str(failure)

    def wait(self, count):
        deadline = time.monotonic() + 10
        while len(self.heard) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.heard

    def stop(self):
        for watch in self.watches:
            watch.stop()


def test_a_failure_reaches_all_others(ranks):
    group = Watched(ranks)
    told = group.watches[1].report(7, 'ValueError: no')
    assert sorted(group.wait(2)) == [0, 2]
    assert set(group.heard.values()) == {str(told)}
    assert 'rank 1 (' in str(told)
    assert 'failed after iteration 7: ValueError: no' in str(told)
    # The first one counts.
    assert group.watches[2].report(8, 'KeyError') == told
    assert group.watches[0].failure() == told
    group.stop()


def test_a_rank_without_a_sign_of_life_is_gone(ranks):
    group = Watched(ranks, lost_after=0.3)
    # Killed: it does not say that it is done.
    group.watches[2]._stopped.set()
    heard = group.wait(2)
    assert 'rank 2 failed: no sign of life' in heard[0]
    assert heard[0] == heard[1]
    group.stop()


def test_a_failed_collective_makes_them_quick(ranks):
    group = Watched(ranks, lost_after=60.0)
    group.watches[0]._stopped.set()
    time.sleep(0.2)
    assert group.heard == {}
    failure = group.watches[1].await_failure(10.0)
    assert failure.rank == 0
    group.stop()


def test_who_is_done_is_not_missed(ranks):
    group = Watched(ranks, lost_after=0.1)
    group.watches[0].stop()
    time.sleep(0.4)
    assert group.heard == {}
    assert group.watches[1].await_failure(0.1) is None
    group.stop()


class Gone:
    def check(self, *args):
        raise RuntimeError('Connection reset by peer')

    set = get = check


def test_the_store_goes_with_the_first_rank(ranks):
    group = Watched(ranks)
    for watch in group.watches[1:]:
        watch._store = Gone()
    heard = group.wait(2)
    assert 'rank 0 failed: the store' in heard[1]
    assert 'Connection reset' in heard[2]
    assert group.watches[1].await_failure(1.0).rank == 0
    group.stop()
