"""Words between ranks, with threads in place of processes."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore, PrefixStore, TCPStore

from mmstable.dist import failure, store
from mmstable.dist.failure import PeerFailure, PeerWatch, RankStatus
from mmstable.io.schema import boolean, integer
from mmstable.profile import causes
from tests.patience import wait_until

# Seconds between two beats.
INTERVAL = 0.02


class Here(threading.local):
    common = clock = None


@pytest.fixture
def ranks(monkeypatch):
    """Three ranks that share a store; each thread says which it is."""
    common, here = HashStore(), Here()

    def open_store(name, timeout_s=None):
        # Every rank counts what it gathers and watches.
        return PrefixStore(name.split('/')[0], common)

    monkeypatch.setattr(Here, 'common', common)

    monkeypatch.setattr(store, 'open_store', open_store)
    monkeypatch.setattr(failure, 'StoreClient', Direct)
    for module in (store, failure):
        monkeypatch.setattr(module, 'get_rank', lambda: here.rank)
        monkeypatch.setattr(module, 'get_world_size', lambda: 3)

    def now():
        return here.clock()

    clock = SimpleNamespace(monotonic=now, sleep=time.sleep)
    monkeypatch.setattr(failure, 'time', clock)
    return here


class Direct:
    """What a StoreClient does, without a thread for each."""

    def __init__(self, name, timeout_s):
        self._store = PrefixStore(name.split('/')[0], Here.common)
        self.timeout_s = timeout_s

    def __getattr__(self, name):
        return getattr(self._store, name)

    def close(self):
        pass


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


def gather(topic, word, timeout):
    number = integer(0, 100)
    return store.gather(
        topic, word, timeout, number, lambda said: sum(said.values()), number
    )


def test_all_who_meet_hear_the_same(ranks):
    answers = in_threads(ranks, 3, lambda rank: gather('a', rank + 1, 20.0))
    assert answers == {0: 6, 1: 6, 2: 6}


def test_who_stays_away_is_missed_by_all(ranks):
    answers = in_threads(ranks, 2, lambda rank: gather('b', rank, 0.2))
    assert answers == {0: None, 1: None}
    # Too late: what the others were told holds.
    ranks.rank = 2
    assert gather('b', 2, 20.0) is None


GARBAGE = [
    b'',
    b'\xff\x80',
    b'{',
    b'[' * 10**5,
    b'9' * 5000,
    b'NaN',
    b'-1',
    b'101',
    b'"1"',
    b'true',
    b'x' * (2 << 20),
    # A pickle that would make a folder.
    b'cos\nmkdir\n(Vmarker\ntR.',
]


@pytest.mark.parametrize('garbage', GARBAGE, ids=lambda g: repr(g[:9]))
def test_a_word_that_no_rank_says_is_no_word(ranks, said, garbage):
    def act(rank):
        if rank == 1:
            ranks.common.add('gather/d/arrived', 1)
            ranks.common.set('gather/d/1', garbage)
            return None
        if rank == 2:
            # The last one, who reads all words.
            keys = ['gather/d/0', 'gather/d/1']
            wait_until(lambda: store.has_keys(ranks.common, keys))
        return gather('d', rank, 20.0)

    answers = in_threads(ranks, 3, act)
    assert (answers[0], answers[2]) == (None, None)
    assert len(said) == 1
    assert "under 'd/1' was not written by a rank of this run" in said[0]
    assert said[0].isprintable()
    assert len(said[0]) < 1000


@pytest.mark.parametrize('garbage', GARBAGE[1:], ids=lambda g: repr(g[:9]))
def test_a_decision_that_no_rank_makes_is_none(ranks, said, garbage):
    ranks.common.set('gather/e/decision', garbage)
    answers = in_threads(ranks, 3, lambda rank: gather('e', rank, 20.0))
    assert answers == {0: None, 1: None, 2: None}
    assert all("under 'e/decision' was not" in line for line in said)
    assert said


def test_a_wrong_count_ends_nothing(ranks):
    ranks.common.set('gather/f/arrived', '7')
    answers = in_threads(ranks, 3, lambda rank: gather('f', rank + 1, 20.0))
    assert answers == {0: 6, 1: 6, 2: 6}


def test_reports_are_few(ranks, said):
    for index in range(1000):
        ranks.common.set(f'key/{index}', b'garbage')
        for _ in range(2):
            found = store.read_value(ranks.common, f'key/{index}', boolean)
            assert found is None
    assert len(said) == 100


class Watched:
    """Three watches, and what they heard.

    Their clock goes by the beats of the slowest one that is alive: however
    late threads are, none of them seems to be silent.
    """

    def __init__(self, here, lost_after=60.0):
        self.heard = {}
        self.watches = []
        self.beats = [0] * 3
        self.alive = {0, 1, 2}
        type(here).clock = staticmethod(self.now)
        for rank in range(3):
            here.rank = rank
            watch = PeerWatch(INTERVAL, lost_after)
            watch.react = partial(self.hear, rank)
            watch._beat = partial(self.beat, rank, watch._beat)
            self.watches.append(watch)
        for watch in self.watches:
            watch.start()

    def beat(self, rank, beat):
        beat()
        self.beats[rank] += 1

    def now(self):
        return INTERVAL * min(self.beats[rank] for rank in self.alive)

    def pass_time(self, seconds):
        end = self.now() + seconds
        wait_until(lambda: self.now() >= end)

    def hear(self, rank, failure):
        self.heard[rank] = str(failure)

    def wait(self, count):
        wait_until(lambda: len(self.heard) >= count)
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
    group.pass_time(0.1)
    group.alive = {0, 1}
    group.watches[2]._thread.stop()
    heard = group.wait(2)
    assert 'rank 2 failed: no heartbeat' in heard[0]
    assert heard[0] == heard[1]
    group.stop()


def test_a_failed_collective_makes_them_quick(ranks):
    group = Watched(ranks, lost_after=60.0)
    group.pass_time(0.1)
    group.alive = {1, 2}
    group.watches[0]._thread.stop()
    group.pass_time(0.2)
    assert group.heard == {}
    failure = group.watches[1].await_failure(10.0)
    assert failure.rank == 0
    group.stop()


def test_who_is_done_is_not_missed(ranks):
    group = Watched(ranks, lost_after=0.1)
    group.alive = {1, 2}
    group.watches[0].stop()
    group.pass_time(0.4)
    assert group.heard == {}
    assert group.watches[1].await_failure(0.1) is None
    group.stop()


class Gone:
    def check(self, *args):
        raise RuntimeError('Connection reset by peer')

    set = get = check

    def close(self):
        pass


def test_the_store_goes_with_the_first_rank(ranks):
    group = Watched(ranks)
    for watch in group.watches[1:]:
        watch._store = Gone()
    heard = group.wait(2)
    assert 'rank 0 failed: the store' in heard[1]
    assert heard[1] == heard[2]
    assert 'the connection is closed' in heard[2]
    assert group.watches[1].await_failure(1.0).rank == 0
    group.stop()


def forged(**changes):
    fields = dict(rank=1, node='n', iteration=3, error='e', decided=False)
    fields.update(saver=1, code=1)
    fields.update(changes)
    return json.dumps(fields).encode()


FORGED = [
    *GARBAGE[1:],
    forged(rank=3),
    forged(rank=-1),
    forged(rank='1'),
    forged(rank=True),
    forged(node='n' * 10**4),
    forged(iteration=-2),
    forged(iteration=1.5),
    forged(error='e' * 10**4),
    forged(error=None),
    forged(decided=1),
    forged(more=1),
    b'{"rank": 1}',
]


@pytest.mark.parametrize('content', FORGED, ids=lambda g: repr(g[:60]))
def test_a_failure_that_no_rank_reports_ends_nobody(ranks, said, content):
    ranks.common.set('watch/failure', content)
    group = Watched(ranks)
    group.pass_time(0.1)
    assert group.heard == {}
    assert group.watches[0].failure() is None
    assert len(said) == 1
    assert "under 'failure' was not written by a rank" in said[0]
    assert said[0].isprintable()
    # A real one takes its place.
    told = group.watches[1].report(7, 'ValueError: no')
    assert sorted(group.wait(2)) == [0, 2]
    assert group.watches[0].failure() == told
    group.stop()


def test_texts_of_other_ranks_are_escaped_and_short(ranks):
    group = Watched(ranks)
    error = 'ValueError: \x1b[2J\nrank 0 failed' + 'e' * 9999
    group.watches[1].report(7, error)
    heard = group.wait(2)
    assert r'ValueError: \x1b[2J\nrank 0 failed' in heard[0]
    assert all(line.isprintable() for line in heard.values())
    assert all(len(line) < 1500 for line in heard.values())
    group.stop()
    failure = PeerFailure(1, '\x1b[31mnode\u202e', 3, 'error')
    assert str(failure).startswith(r'rank 1 (\x1b[31mnode\u202e) failed')


def test_words_are_read_through_a_check(ranks, said):
    group = Watched(ranks)
    group.watches[1].leave('topic', [1])
    assert group.watches[0].read('topic', 1, boolean) is None
    group.watches[1].leave('topic', True)
    assert group.watches[0].read('topic', 1, boolean) is True
    assert group.watches[0].read('topic', 2, boolean) is None
    assert len(said) == 1
    ranks.common.set('watch/beat/1', b'\xff' * 100)
    assert group.watches[0].last_beat(1) is not None
    assert group.watches[0].last_beat(5) is None
    group.stop()


class Silent:
    """A port that takes connections, and answers only when it is let."""

    def __init__(self):
        self.server = TCPStore('127.0.0.1', 0, is_master=True)
        self.let = threading.Event()

    def __enter__(self):
        self.front = socket.create_server(('127.0.0.1', 0))
        threading.Thread(target=self.serve, daemon=True).start()
        return self

    def __exit__(self, *args):
        self.let.set()
        self.front.close()

    def serve(self):
        near, _ = self.front.accept()
        far = socket.create_connection(('127.0.0.1', self.server.port))
        pairs = [(near, far), (far, near)]
        for source, target in pairs:
            args = source, target
            threading.Thread(target=self.copy, args=args, daemon=True).start()

    def copy(self, source, target):
        with suppress(OSError):
            while content := source.recv(4096):
                self.let.wait()
                target.sendall(content)


def test_no_call_takes_longer_than_its_limit():
    with Silent() as link:
        link.let.set()
        address = link.front.getsockname()
        client = store.StoreClient('part', 0.5, address)
        client.timeout_s = 20.0
        client.set('key', 'value')
        assert client.check(['key'])
        # The link is cut: no FIN, no answer.
        link.let.clear()
        client.timeout_s = 0.5
        with pytest.raises(store.StoreGone, match='no response for 0 s'):
            client.get('key')
        client.timeout_s = 20.0
        with pytest.raises(store.StoreGone, match='no response'):
            # At once: the first one is still stuck.
            client.set('key', 'other')
        # It is back.
        link.let.set()
        wait_until(lambda: not client._is_stuck)
        assert client.get('key') == b'value'
        client.close()


def test_an_attempt_does_not_see_the_one_before(monkeypatch):
    whole = HashStore()
    monkeypatch.setattr(
        store.distributed_c10d, '_get_default_store', lambda: whole
    )
    before = store.open_store('watch')
    store.leave_value(before, 'failure', True)
    monkeypatch.setenv('MMSTABLE_RESTARTS', '1')
    assert not store.has_keys(store.open_store('watch'), ['failure'])
    client = store.StoreClient('watch', 20.0)
    assert not client.check(['failure'])
    monkeypatch.setenv('MMSTABLE_RESTARTS', '0')
    assert store.has_keys(store.open_store('watch'), ['failure'])
    client.close()


class StoreWithoutCheck:
    """What Python sees of a store before torch 2.3."""

    def __init__(self, inner):
        self.compare_set = inner.compare_set


def test_a_store_that_cannot_check_is_asked_otherwise():
    inner = PrefixStore('part', HashStore())
    old = StoreWithoutCheck(inner)
    inner.set('there', '1')
    assert store.has_keys(old, ['there'])
    assert not store.has_keys(old, ['there', 'missing'])
    # Asking for it has not put it there.
    assert not store.has_keys(old, ['missing'])
    assert inner.get('there') == b'1'


def status(**changes):
    own = RankStatus(1, 5, 'step', 9.0)
    return json.dumps({**asdict(own), **changes}).encode()


@pytest.mark.parametrize(
    ('word', 'reason'),
    [
        (status(rank=2), '`rank`: must be 1 to 1, got 2'),
        (status(seconds=-1.0), '`seconds`: must be 0 to'),
        (status(seconds=1e300), '`seconds`: must be 0 to'),
    ],
)
def test_a_status_that_no_rank_leaves_is_none(monkeypatch, said, word, reason):
    common = HashStore()
    monkeypatch.setattr(failure, 'StoreClient', lambda *args: common)
    monkeypatch.setattr(failure, 'get_world_size', lambda: 3)
    watch = PeerWatch()
    common.set('status/1', word)
    assert watch.status_of(1) is None
    assert reason in said[0]
    common.set('status/1', status())
    assert watch.status_of(1) == RankStatus(1, 5, 'step', 9.0)


@pytest.mark.parametrize(
    'times', [[], [1.0], [1.0] * 4, [1.0, 2.0, None], [1.0, 2.0, -1.0]]
)
def test_times_that_no_rank_has_are_none(ranks, monkeypatch, said, times):
    monkeypatch.setattr(causes, 'get_world_size', lambda: 3)
    monkeypatch.setattr(causes, '_SERIAL', itertools.repeat(0))
    monkeypatch.setattr(causes, '_PATIENCE', 20.0)
    profile = SimpleNamespace(phases=dict(data=1.0, forward=2.0, hooks=3.0))

    def act(rank):
        if rank == 1:
            ranks.common.add('gather/profile/0/arrived', 1)
            ranks.common.set('gather/profile/0/1', json.dumps(times))
            return None
        if rank == 2:
            keys = [f'gather/profile/0/{one}' for one in (0, 1)]
            wait_until(lambda: store.has_keys(ranks.common, keys))
        return causes.gather_times(profile)

    answers = in_threads(ranks, 3, act)
    assert (answers[0], answers[2]) == ([], [])
    assert any("under 'profile/0/1' was not" in line for line in said)
