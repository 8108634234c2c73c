"""Models that are hard to repeat end as with stock mmengine."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / 'benchmarks'
sys.path.insert(0, str(BENCHMARKS))

from odd_protocols import ODD, ODD_SICK  # noqa: E402
from protocols import (  # noqa: E402
    is_equal,
    is_healthy,
    run_protected,
    run_stock,
)

SHORT = [
    'a wild batch in a window of 2',
    'recomputed activations',
    'generators of the model',
    'a helper with a counter and an iterator',
    'writes to its batch',
    'a teacher',
    'two steps an iteration',
    'a reward without a bound',
]
# Why a held step of these cannot be repeated.
REASONS = {
    'three optimizers at three rates': 'several optimizer wrappers',
    'a helper with a counter and an iterator': 'holds generator, range_it',
    'two steps an iteration': 'not the first step of its iteration',
}


@pytest.mark.parametrize(
    'name',
    [
        pytest.param(name, marks=[] if name in SHORT else pytest.mark.soak)
        for name in ODD
    ],
)
def test_an_odd_healthy_run_is_the_stock_run(name):
    stock, ours = run_stock(ODD[name]), run_protected(ODD[name])
    assert is_healthy(stock)
    assert is_equal(stock, ours), (ours.error, ours.events[1:])
    assert not ours.count('step_fault', 'fault')
    held = [one for one in ours.events if one['event'] == 'held_step']
    if name in REASONS:
        assert REASONS[name] in held[0]['reason']
    else:
        assert {one['verdict'] for one in held} <= {'reproducible'}


def interventions(result):
    return [one for one in result.events if one['event'] == 'intervention']


@pytest.mark.parametrize(
    ('name', 'culprit'),
    [
        ('optimizer state Inf by a hook', 'exp_avg_sq (Inf)'),
        ('running statistics NaN by a hook', 'running_var (NaN)'),
    ],
)
def test_a_state_that_a_hook_has_spoiled_goes_back(name, culprit):
    ours = run_protected(ODD_SICK[name])
    (done,) = interventions(ours)
    assert (done['action'], done['fault']) == ('rollback', 'poisoned')
    assert culprit in done['reason']
    assert ours.error == ''
    assert ours.end < 1.0


@pytest.mark.parametrize(
    'name',
    ['learning rate x 1e5 by a hook', 'SGD, learning rate 5, a window of 4'],
)
def test_a_rate_that_is_too_high_is_rolled_back(name):
    assert not is_healthy(run_stock(ODD_SICK[name]))
    ours = run_protected(ODD_SICK[name])
    assert ours.count('intervention', 'action')['rollback']
    assert ours.error.startswith('TrainingDiverged') or ours.end < 10


@pytest.mark.parametrize(
    ('name', 'advice'),
    [
        ('a parameter leaves the domain of its logarithm', 'scale.log()'),
        ('NaN in 60 % of the samples', 'leave out the samples'),
        ('three optimizers, learning rate 1e4', 'lower the learning rate'),
    ],
)
def test_a_run_that_cannot_be_saved_stops_with_the_cause(name, advice):
    ours = run_protected(ODD_SICK[name])
    assert ours.error.startswith('TrainingDiverged')
    assert advice in ours.error


def test_faults_of_the_machine_are_found_in_spite_of_all_generators():
    name = 'gradient x 1000 with dropout and all generators'
    ours = run_protected(ODD_SICK[name])
    assert ours.count('step_fault', 'fault') == {'transient': 2}


def test_norms_beyond_float32_are_reproducible():
    ours = run_protected(ODD_SICK['norms beyond float32'])
    held = [one for one in ours.events if one['event'] == 'held_step']
    assert max(one['value'] for one in held) > math.sqrt(3.4e38)
    assert 'transient' not in {one['verdict'] for one in held}


@pytest.mark.soak
def test_dead_units_are_reported_once():
    stock = run_stock(ODD_SICK['dead units'])
    ours = run_protected(ODD_SICK['dead units'])
    assert is_equal(stock, ours)
    (done,) = interventions(ours)
    assert (done['action'], done['fault']) == ('warn', 'dead')
