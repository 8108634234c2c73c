"""When do all ranks stop?"""

from __future__ import annotations

import pytest
from torch.distributed import HashStore

from mmstable.distributed import coordinated_stop
from mmstable.distributed.coordinated_stop import CoordinatedStop


@pytest.fixture
def common(monkeypatch):
    """What all ranks see."""
    common = HashStore()
    monkeypatch.setattr(coordinated_stop, 'open_store', lambda name: common)
    return common


@pytest.mark.parametrize(
    ('interval', 'window', 'asked', 'stop'),
    [(10, 1, 3, 10), (10, 1, 10, 20), (10, 1, 9, 10), (1, 1, 5, 6)]
    + [(10, 4, 8, 20), (5, 4, 16, 20)],
)
def test_nobody_is_asked_to_stop_in_the_past(
    common, interval, window, asked, stop
):
    asking, other = (
        CoordinatedStop(interval, window),
        CoordinatedStop(interval, window),
    )
    assert not any(other.is_due(i) for i in range(1, asked + 1))
    asking.request(asked)
    # The others have averaged once more before the store is surely read.
    assert stop >= asked + window
    for rank in (asking, other):
        looks = [i for i in range(1, 60) if rank.is_due(i)]
        assert looks[0] == stop
    # A later wish changes nothing.
    other.request(asked + 1)
    assert int(common.get('at')) == stop


@pytest.mark.parametrize(
    'garbage', [b'\xff', b'-5', b'1e3', b'true', b'null', b'9' * 5000, b'"4"']
)
def test_what_is_no_iteration_stops_nobody(common, said, garbage):
    common.set('at', garbage)
    asking, other = CoordinatedStop(1, 1), CoordinatedStop(1, 1)
    assert not any(other.is_due(i) for i in range(1, 60))
    assert len(said) == 1
    assert "under 'at' was not written by a rank of this run" in said[0]
    assert said[0].isprintable()
    # A real wish takes its place.
    asking.request(5)
    assert [i for i in range(1, 9) if other.is_due(i)] == [6, 7, 8]
