"""Growth is told from noise, warm-up, caches and restarts; no runner."""

from __future__ import annotations

import math
from random import Random

import pytest

from mmstable.memory.host import Reading, Room
from mmstable.memory.leaks import (
    FILES,
    HOST,
    SHARED,
    Growth,
    LeakDetector,
    Point,
    Trend,
)
from mmstable.messages import parse_size, readable, readable_time

MIB, GIB = 1 << 20, 1 << 30


def trend_of(values, step=10, seconds=30.0):
    trend = Trend()
    for number, value in enumerate(values):
        trend.add(Point(step * number, seconds * number, value))
    return trend


def noisy(function, count=60, noise=5.0, seed=0):
    random = Random(seed)
    return [function(x) + random.gauss(0, noise) for x in range(count)]


@pytest.mark.parametrize('seed', range(5))
def test_the_slope_of_a_leak(seed):
    growth = trend_of(noisy(lambda x: 500 + 8 * x, seed=seed)).growth()
    assert growth.per_iteration == pytest.approx(0.8, rel=0.1)
    assert growth.per_second == pytest.approx(8 / 30, rel=0.1)


def test_outliers_do_not_matter():
    values = noisy(lambda x: 500 + 8 * x)
    values[20] *= 10
    values[-1] = 0
    growth = trend_of(values).growth()
    assert growth.per_iteration == pytest.approx(0.8, rel=0.1)


@pytest.mark.parametrize('seed', range(5))
@pytest.mark.parametrize(
    'function',
    [
        lambda x: 500,
        lambda x: 500 - 3 * x,
        # A warm-up, and a cache that is full.
        lambda x: 500 + 400 * (1 - math.exp(-x / 10)),
        lambda x: 500 + 8 * min(x, 25),
        # Workers that start anew, and garbage that is collected.
        lambda x: 500 + 20 * (x % 10),
        lambda x: 500 + 100 * math.sin(x / 3),
        # A jump: a validation loader that stays, a larger batch.
        lambda x: 500 + 300 * (x > 30),
    ],
)
def test_what_is_no_leak(function, seed):
    assert trend_of(noisy(function, seed=seed)).growth() == Growth()


def test_few_points_say_nothing():
    assert trend_of(range(11)).growth() == Growth()
    assert trend_of(range(12)).growth() != Growth()


def test_old_points_are_forgotten():
    trend = trend_of([1000 + 8 * x for x in range(50)] + [2000] * 60)
    assert trend.growth() == Growth()


def reading(number=0, **changes):
    facts = dict(
        seconds=30.0 * number,
        main=2 * GIB,
        tree=4 * GIB,
        workers=2 * GIB,
        worker_pids=frozenset([1, 2]),
        room=Room(64 * GIB, 60 * GIB, 'cgroup'),
        main_files=50,
        worker_files=20,
        max_files=1024,
        shared=Room(8 * GIB, 8 * GIB, 'machine'),
    )
    return Reading(**{**facts, **changes})


def leak_of_workers(number):
    size = number * 100 * MIB
    return reading(
        number,
        workers=2 * GIB + size,
        tree=4 * GIB + size,
        room=Room(64 * GIB, 60 * GIB - size, 'cgroup'),
    )


def alarms(readings, last=10**6, first_pass_ends=0, step=10):
    """Resource and holder of all warnings, with their iteration."""
    detector = LeakDetector(last, first_pass_ends)
    found = []
    for number, one in enumerate(readings):
        for forecast in detector.add(step * number, one):
            if detector.is_new(forecast, step * number):
                found.append((step * number, forecast))
    return found


def test_a_leak_of_workers_is_forecast():
    (iteration, forecast), *_ = alarms(map(leak_of_workers, range(40)))
    assert iteration < 200
    assert (forecast.resource, forecast.holder) == (HOST, 'workers')
    assert forecast.growth.per_iteration == pytest.approx(10 * MIB, rel=0.01)
    left = forecast.room.left / (100 * MIB) * 30
    assert forecast.seconds_left == pytest.approx(left, rel=0.01)


def test_a_leak_of_the_training_process():
    ((_, forecast),) = alarms(
        reading(n, main=2 * GIB + n * 10 * MIB) for n in range(40)
    )
    assert (forecast.resource, forecast.holder) == (HOST, 'main_process')


@pytest.mark.parametrize('holder', ['main', 'worker'])
def test_descriptors(holder):
    ((_, forecast),) = alarms(
        reading(n, **{f'{holder}_files': 30 + n}) for n in range(40)
    )
    assert forecast.resource == FILES
    assert forecast.holder.startswith(holder)
    assert forecast.growth.per_iteration == pytest.approx(0.1)


def test_shared_memory():
    ((_, forecast),) = alarms(
        reading(n, shared=Room(8 * GIB, (8 << 30) - n * 9 * MIB, 'machine'))
        for n in range(40)
    )
    assert forecast.resource == SHARED


def test_a_limit_behind_the_end_of_the_run_is_none():
    assert alarms(map(leak_of_workers, range(40)), last=1000) == []


def test_growth_of_the_first_pass_may_be_a_cache():
    readings = [leak_of_workers(min(n, 30)) for n in range(200)]
    assert alarms(readings, first_pass_ends=300) == []
    # Unless the limit is reached before the pass ends.
    assert alarms(readings, first_pass_ends=10**5) != []
    # A leak goes on.
    found = alarms(map(leak_of_workers, range(60)), first_pass_ends=300)
    assert found[0][0] > 300


def test_workers_that_start_anew_are_no_leak():
    readings = [
        reading(
            n,
            workers=GIB + (n % 8) * 90 * MIB,
            worker_pids=frozenset([n // 8]),
        )
        for n in range(100)
    ]
    assert alarms(readings) == []


def test_validation_is_no_growth():
    detector = LeakDetector(10**6)
    for number in range(40):
        found = detector.add(
            10 * number, leak_of_workers(number), is_training=False
        )
        assert all(one.growth.per_iteration == 0 for one in found)


def test_a_warning_comes_again_when_half_of_the_time_is_left():
    found = alarms(map(leak_of_workers, range(600)))
    left = [one.seconds_left for _, one in found]
    assert 3 <= len(left) <= 10
    assert all(b <= a / 2 for a, b in zip(left, left[1:]))


def test_critical_is_told_once_and_in_time():
    detector = LeakDetector(10**6)
    critical = []
    for number in range(614):
        for one in detector.add(10 * number, leak_of_workers(number)):
            if detector.becomes_critical(one, 10 * number):
                critical.append(one.room.left)
    # 1 % of the limit, which is more than two readings.
    assert len(critical) == 1
    assert 500 * MIB < critical[0] <= 0.64 * GIB


def test_fast_growth_is_critical_earlier():
    detector, found = LeakDetector(10**6), []
    for number in range(30):
        room = Room(64 * GIB, (60 - 2 * number) * GIB, 'cgroup')
        one = reading(number, workers=(1 + 2 * number) * GIB, room=room)
        for forecast in detector.add(number, one):
            if detector.becomes_critical(forecast, number):
                found.append(forecast.room.left)
    assert found == [4 * GIB]


@pytest.mark.parametrize(
    ('last', 'expected'),
    [
        # At once, and when growth is known to use up the rest.
        (10**6, [0, 130]),
        # It does not before the run ends.
        (200, [0]),
    ],
)
def test_growth_that_is_known_late(last, expected):
    detector, found = LeakDetector(last), []
    for number in range(20):
        left = 600 * MIB - number * 10 * MIB
        room = Room(64 * GIB, left, 'cgroup')
        one = reading(number, main=2 * GIB + number * 10 * MIB, room=room)
        for forecast in detector.add(10 * number, one):
            if detector.becomes_critical(forecast, 10 * number):
                found.append(10 * number)
    assert found == expected


@pytest.mark.parametrize(
    ('text', 'size'),
    [
        ('24GiB', 24 << 30),
        ('24G', 24 << 30),
        ('80 GB', 80 * 10**9),
        ('1.5mib', 3 << 19),
        ('512', 512),
    ],
)
def test_sizes_are_read(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize('text', ['', 'GiB', '24 apples', '-1GiB', '0'])
def test_what_is_no_size(text):
    with pytest.raises(
        ValueError, match='a size must be a number above 0 with a'
    ):
        parse_size(text)


def test_sizes_and_times_are_written():
    assert readable(0) == '0 B'
    assert readable(31 << 20) == '31.0 MiB'
    assert readable(3 << 50) == '3072.0 TiB'
    assert [readable_time(n) for n in (45, 2820, 9000, 10**6)] == [
        '45 s',
        '47 min',
        '2.5 h',
        '11.6 d',
    ]
