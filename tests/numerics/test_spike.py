"""What jumps above its recent level, and what only moves."""

import math
import random

import pytest

from benchmarks.spike_series import FAR_REACHING, SERIES
from mmstable.numerics.lr_ramp import LearningRateRamp
from mmstable.numerics.sorted_window import SortedWindow
from mmstable.numerics.spike import SpikeDetector
from tests.toys import INF, NAN


def noise(count, level=1.0, seed=0):
    draw = random.Random(seed)
    return [level * (1 + 0.2 * draw.gauss(0, 1)) for _ in range(count)]


def fed(values, **kwargs):
    detector = SpikeDetector(**kwargs)
    found = [i for i, value in enumerate(values) if detector.observe(value)]
    return detector, found


def test_noise_is_no_spike():
    assert fed(noise(5000))[1] == []


def test_a_jump_is_one_and_does_not_lift_the_level():
    detector, found = fed([*noise(200), 50.0, 40.0, *noise(50, seed=1)])
    assert found == [200, 201]
    assert detector.level == pytest.approx(1.0, abs=0.1)


def test_nothing_is_a_spike_before_there_is_a_level():
    assert fed([1.0] * 10 + [1e9], warmup=20)[1] == []


@pytest.mark.parametrize('value', [NAN, INF, -INF])
def test_what_is_not_finite_is_left_to_others(value):
    detector, found = fed([*noise(100), *([value] * 200), *noise(5), 99.0])
    assert found == [305]
    assert math.isfinite(detector.limit)


def test_a_slow_rise_is_followed():
    values = [v * 1.02**i for i, v in enumerate(noise(600))]
    assert fed(values)[1] == []


def test_a_fall_is_no_spike():
    assert fed([*noise(200, 100.0), *noise(200)])[1] == []


def test_a_lasting_rise_becomes_the_level():
    values = [*noise(200), *noise(200, 100.0)]
    detector, found = fed(values, patience=20, warmup=10)
    assert found == list(range(200, 220))
    assert detector.level == pytest.approx(100.0, rel=0.1)


def test_constant_values_bear_a_little_more():
    assert fed([1.0] * 100 + [20.0])[1] == []
    assert fed([1.0] * 100 + [20.2])[1] == [100]


def test_what_varies_by_factors_is_judged_by_factors():
    draw = random.Random(0)
    norms = [math.exp(0.4 * draw.gauss(0, 1)) for _ in range(5000)]
    assert fed(norms)[1] == []
    assert max(norms) > 3.5
    assert fed([*norms[:200], 150.0])[1] == [200]


def test_losses_below_zero_are_judged_as_they_are():
    values = [v - 3 for v in noise(200)]
    assert fed(values)[1] == []
    assert fed([*values, 40.0])[1] == [200]


@pytest.mark.parametrize(
    ('preset', 'most'),
    [({}, 4), (dict(threshold=6.0, window=50, warmup=25), 8)],
    ids=['default', 'ultra_safe'],
)
@pytest.mark.parametrize('name', SERIES)
def test_healthy_series_and_their_thousandfold_spikes(name, preset, most):
    values = list(SERIES[name](random.Random(1), 5000))
    _, found = fed(values, **preset)
    # The first ones of a long tail; the rates are in the benchmark.
    assert len(found) <= most
    # Again, with spikes: each is found, and none hides the next one.
    detector = SpikeDetector(**preset)
    for index, value in enumerate(values):
        detector.observe(value)
        if index > 500 and index % 1200 == 0:
            assert detector.observe(1000 * abs(detector.level))


@pytest.mark.parametrize('seed', [1, 2])
@pytest.mark.parametrize('name', FAR_REACHING)
def test_series_that_reach_far_are_known_soon(name, seed):
    values = list(FAR_REACHING[name](random.Random(seed), 10000))
    detector, found = fed(values)
    assert max(values) > 1000 * detector.level
    assert len(found) <= 30
    assert found[-1] < 3500


@pytest.mark.parametrize(('every', 'most'), [(16, 5), (40, 5), (300, 10)])
def test_spikes_that_recur_are_learned_and_told_once(every, most):
    detector, told, found = SpikeDetector(), [], 0
    for index, value in enumerate(noise(12000)):
        found += detector.observe(
            3e3 if index % every == 99 % every else value
        )
        if detector.learned is not None:
            told.append(detector.learned)
            detector.learned = None
    ((count, among, value, level),) = told
    assert found == count == most
    assert among == (most - 1) * (every - 1) + 1
    assert value == pytest.approx(3e3, rel=0.1)
    assert level == pytest.approx(1.0, abs=0.1)
    # What is far above them is still a spike, and does not hide the next.
    assert [detector.observe(1e5), detector.observe(1.0)] == [True, False]
    assert detector.observe(1e5)


def test_one_fault_among_hard_batches_is_not_learned():
    values = [3e3 if i % 40 == 39 else v for i, v in enumerate(noise(400))]
    values[120] = 1e7
    detector, found = fed(values)
    assert len(found) <= 6
    assert detector.limit < 1e4
    assert detector.observe(1e7)


def test_a_thousandfold_spike_once_in_a_while_is_never_learned():
    values = noise(30000)
    values[999::1500] = [1000.0] * 20
    assert len(fed(values)[1]) == 20


def test_zeros_say_nothing():
    values = [v if i % 5 == 0 else 0.0 for i, v in enumerate(noise(1000))]
    detector, found = fed([*values, 0.0, 50.0, 0.0, 50.0, *noise(5)])
    assert found == [1001, 1003]
    assert detector.level == pytest.approx(1.0, abs=0.1)
    assert fed([0.0] * 500 + [1e9])[1] == []


def test_zeros_do_not_delay_a_new_level():
    rise = [v for pair in zip(noise(30, 9e3), [0.0] * 30) for v in pair]
    assert len(fed([*noise(200), *rise])[1]) == 20


def test_rare_hard_batches_become_known():
    values = [50.0 if i % 30 == 29 else v for i, v in enumerate(noise(3000))]
    detector, found = fed(values)
    # Nothing else is known of the first ones.
    assert found == [59, 89, 119]
    assert 50 < detector.limit < 1000
    # But not a thousand times the level.
    _, found = fed([*values, 1000.0] * 5)
    assert found[3:] == [3000 + 3001 * i for i in range(5)]


def test_single_outliers_do_not_become_known():
    values = [50.0 if i % 300 == 299 else v for i, v in enumerate(noise(3000))]
    assert len(fed(values)[1]) == 10


def test_a_long_tail_is_followed():
    draw = random.Random(0)
    values = [draw.lognormvariate(0, 1.5) for _ in range(20000)]
    detector, found = fed(values)
    assert max(values) > 150 * detector.level
    assert len(found) <= 3


def test_a_thousand_times_the_level_is_above_any_tail():
    steps = [15.0, 28.0, 52.0, 98.0, 180.0, 340.0, 640.0, 800.0]
    values = [v for step in steps for v in (*noise(100), step)]
    detector, found = fed(values)
    assert found == []
    assert 800 < detector.limit < 1000 * detector.level


def test_spikes_that_come_in_every_fifth_batch_are_usual():
    values = [9e3 if i % 5 == 4 else v for i, v in enumerate(noise(5000))]
    assert len(fed(values)[1]) == 5


def test_more_than_one_in_ten_is_usual_also_in_bursts():
    burst = [9e3] * 15
    values = [v for i in range(50) for v in (*noise(60, seed=i), *burst)]
    detector, found = fed(values)
    assert len(found) <= 40
    assert detector.limit > 9e3


def test_a_high_threshold_is_not_lowered():
    assert fed([1.0] * 100 + [1.7e4], threshold=33.0)[1] == []
    assert fed([1.0] * 100 + [2.2e4], threshold=33.0)[1] == [100]


@pytest.mark.parametrize('threshold', [0.5, 10.0, 1000.0])
def test_extreme_numbers_are_measured(threshold):
    values = [1e-300, 1e300, 5e-324, 1e308] * 100
    detector, _ = fed([*noise(60), *values], threshold=threshold)
    assert not math.isnan(detector.limit)


def test_a_resumed_detector_goes_on():
    draw = random.Random(5)
    values = [
        *noise(150), 50.0, *noise(40, seed=3), 60.0, 9e3, *noise(3), 50.0,
        *[draw.lognormvariate(0, 1.5) for _ in range(300)], 9e5,
        *[v for i in range(6) for v in (*noise(20, seed=i), 4e4)],
    ]  # fmt: skip
    whole, found = fed(values)
    assert len(found) >= 4
    assert whole.learned is not None
    for cut in (100, 151, 193, 300, 499, 560):
        first, _ = fed(values[:cut])
        rest = SpikeDetector()
        rest.load_state_dict(first.state_dict())
        assert [
            i + cut for i, v in enumerate(values[cut:]) if rest.observe(v)
        ] == [i for i in found if i >= cut]
        assert rest.state_dict() == whole.state_dict()


def test_quantiles_are_those_of_the_newest():
    window = SortedWindow(5)
    window.extend([9, 9, 9, 5, 1, 3, 2, 4])
    assert [window.quantile(q) for q in (0, 0.25, 0.5, 0.9, 1)] == [
        1, 2, 3, pytest.approx(4.6), 5,
    ]  # fmt: skip
    assert (len(window), list(window)) == (5, [5, 1, 3, 2, 4])


def test_a_cut_recovers_in_a_straight_line():
    ramp = LearningRateRamp(10)
    assert ramp.factor(3) == 1.0
    assert ramp.cut(100, 0.5) == 0.5
    assert [ramp.factor(i) for i in (100, 105, 110, 200)] == [
        0.5, 0.75, 1.0, 1.0,
    ]  # fmt: skip


def test_cuts_multiply_and_have_an_end():
    ramp = LearningRateRamp(10)
    ramp.cut(0, 0.5)
    assert ramp.cut(5, 0.5) == 0.375
    for _ in range(30):
        ramp.cut(5, 0.5)
    assert ramp.factor(5) == 1e-3


def test_a_cut_without_recovery_stays():
    ramp = LearningRateRamp(0)
    ramp.cut(10, 0.5)
    assert ramp.factor(10**6) == 0.5


def test_a_ramp_can_start_low_and_be_resumed():
    ramp = LearningRateRamp(10, start=0.2, start_length=4)
    assert [ramp.factor(i) for i in range(5)] == pytest.approx(
        [0.2, 0.4, 0.6, 0.8, 1.0]
    )


def test_a_cut_does_not_shorten_the_warm_up():
    ramp = LearningRateRamp(10, start=0.2, start_length=100)
    warm = ramp.factor(50)
    ramp.cut(50, 0.5)
    assert ramp.factor(50) == pytest.approx(0.5 * warm)
    assert ramp.factor(60) == pytest.approx(0.2 + 0.8 * 0.6)
    other = LearningRateRamp(10, start=0.2, start_length=100)
    other.load_state_dict(ramp.state_dict())
    assert other.factor(55) == ramp.factor(55)
