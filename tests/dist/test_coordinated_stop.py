"""When do all ranks obey a signal?"""

from __future__ import annotations

import json

import pytest
from torch.distributed import HashStore

from mmstable.dist import store
from mmstable.dist.store import AgreedRequests
from mmstable.io.schema import one_of

NAMES = ('SIGTERM', 'SIGHUP', 'SIGUSR1')


class Stop(AgreedRequests):
    def __init__(self):
        super().__init__('coordinated_stop', signal=one_of(*NAMES))

    def due(self, iteration):
        request = super().due(iteration)
        return request and request['signal']


@pytest.fixture
def common(monkeypatch):
    """What all ranks see."""
    common = HashStore()
    monkeypatch.setattr(store, 'open_store', lambda name: common)
    return common


@pytest.mark.parametrize(
    ('window', 'asked', 'stop'),
    [(1, 3, 4), (7, 13, 14), (7, 14, 21), (7, 15, 21), (4, 8, 12)],
)
def test_all_stop_at_the_next_step_that_all_have_ahead(
    common, window, asked, stop
):
    asking, other = Stop(), Stop()
    looks = range(window, 60, window)
    assert not any(other.due(i) for i in looks if i <= asked)
    asking.post(asked, signal='SIGTERM')
    # The others may look for the last time before, or for the first after.
    assert asked % window or other.due(asked) is None
    # A later wish changes nothing.
    other.post(asked + 1, signal='SIGHUP')
    for rank in (asking, other):
        later = [i for i in looks if i > asked]
        assert later[0] == stop
        assert rank.due(stop) == 'SIGTERM'


def test_one_after_the_other(common):
    asking, other = Stop(), Stop()
    asking.post(3, signal='SIGUSR1')
    other.post(3, signal='SIGTERM')
    assert [rank.due(4) for rank in (asking, other)] == ['SIGUSR1'] * 2
    assert [rank.due(5) for rank in (asking, other)] == [None] * 2
    other.post(5, signal='SIGTERM')
    assert [rank.due(6) for rank in (asking, other)] == ['SIGTERM'] * 2


@pytest.mark.parametrize(
    'garbage',
    [b'\xff', b'-5', b'true', b'null', b'9' * 5000, b'{}']
    + [
        json.dumps(dict(after=after, signal=signal)).encode()
        for after, signal in [
            (-1, 'SIGTERM'),
            ('1', 'SIGTERM'),
            (1, 15),
            (1, 'SIGKILL'),
            (1, 'SIGSEGV'),
            (1, ''),
        ]
    ],
)
def test_what_is_no_request_stops_nobody(common, said, garbage):
    common.set('request/0', garbage)
    asking, other = Stop(), Stop()
    assert not any(other.due(i) for i in range(1, 60))
    assert len(said) == 1
    assert "under 'request/0' was not written by a rank of this run" in said[0]
    assert said[0].isprintable()
    # A real wish takes its place.
    asking.post(5, signal='SIGTERM')
    assert [other.due(i) for i in (5, 6)] == [None, 'SIGTERM']
