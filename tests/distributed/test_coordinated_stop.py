"""When do all ranks stop?"""

import pytest

from mmstable.distributed import coordinated_stop
from mmstable.distributed.coordinated_stop import CoordinatedStop


class Store:
    """What all ranks see."""

    def __init__(self):
        self.values = {}

    def check(self, keys):
        return all(key in self.values for key in keys)

    def get(self, key):
        return self.values[key]

    def compare_set(self, key, expected, value):
        return self.values.setdefault(key, value)


@pytest.mark.parametrize(
    ('interval', 'window', 'asked', 'stop'),
    [(10, 1, 3, 10), (10, 1, 10, 20), (10, 1, 9, 10), (1, 1, 5, 6)]
    + [(10, 4, 8, 20), (5, 4, 16, 20)],
)
def test_nobody_is_asked_to_stop_in_the_past(
    monkeypatch, interval, window, asked, stop
):
    store = Store()
    monkeypatch.setattr(coordinated_stop, 'open_store', lambda name: store)
    asking, other = (
        CoordinatedStop(interval, window),
        CoordinatedStop(interval, window),
    )
    assert not any(other.is_now(i) for i in range(1, asked + 1))
    asking.make(asked)
    # The others have averaged once more before the store is surely read.
    assert stop >= asked + window
    for rank in (asking, other):
        looks = [i for i in range(1, 60) if rank.is_now(i)]
        assert looks[0] == stop
    # A later wish changes nothing.
    other.make(asked + 1)
    assert int(store.values['at']) == stop
