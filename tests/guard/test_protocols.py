"""Healthy runs stay as they are, sick ones are saved or stopped."""

from __future__ import annotations

import copy
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / 'benchmarks'
sys.path.insert(0, str(BENCHMARKS))

import protocols  # noqa: E402
from protocols import (  # noqa: E402
    HEALTHY,
    SICK,
    is_equal,
    is_healthy,
    random_healthy,
    rounding_of,
    run_protected,
    run_stock,
)

# Those that are short, and were hurt when spikes were skipped.
SMALL = {
    'policy gradient, sparse reward': 120,
    'rare class of 3 %, batch of 1': 250,
    'another dataset in every 40th batch': 130,
    'StyleGAN2, R1 of 100': 120,
    'loss weight 0 to 100': 190,
    'NaN in a buffer of class means': 120,
}


def assert_equal_to_stock(protocol):
    stock, ours = run_stock(protocol), run_protected(protocol)
    assert is_healthy(stock)
    rounding = rounding_of(protocol)
    assert is_equal(stock, ours, rounding), (ours.error, ours.events[1:])
    assert not ours.count('step_fault', 'fault')
    assert not ours.count('held_step', 'verdict')['transient']
    return ours


def ends_well(ours):
    """Whether a run was saved, or stopped with the reason."""
    level = 1e3 * ours.losses[0]
    return ours.error.startswith('TrainingDiverged') or all(
        abs(one) < level for one in ours.losses[-5:]
    )


@pytest.mark.parametrize('name', SMALL)
def test_a_healthy_run_is_the_stock_run(name):
    assert_equal_to_stock(replace(HEALTHY[name], iterations=SMALL[name]))


@pytest.mark.soak
@pytest.mark.parametrize('name', HEALTHY)
def test_a_long_healthy_run_is_the_stock_run(name):
    assert_equal_to_stock(HEALTHY[name])


@pytest.mark.soak
def test_200_random_healthy_runs_are_the_stock_runs():
    seeds, done = iter(range(10**6)), 0
    while done < 200:
        seed = next(seeds)
        protocol = random_healthy(seed)
        stock = run_stock(copy.deepcopy(protocol))
        if is_healthy(stock):
            ours = run_protected(protocol)
            assert is_equal(stock, ours, rounding_of(protocol)), seed
            assert not ours.count('step_fault', 'fault'), seed
            done += 1


@pytest.mark.parametrize(
    'name',
    [
        'SGD, learning rate 5',
        pytest.param(
            'SGD, learning rate 1.5, momentum', marks=pytest.mark.soak
        ),
    ],
)
def test_a_learning_rate_that_is_too_high(name):
    protocol = replace(SICK[name], iterations=200)
    assert not is_healthy(run_stock(protocol))
    ours = run_protected(protocol)
    assert ours.count('intervention', 'action')['rollback']
    assert ends_well(ours)


@pytest.mark.parametrize(
    'where', ['gradient', pytest.param('loss', marks=pytest.mark.soak)]
)
def test_ten_faults_of_the_machine_do_no_harm(where):
    once, often = SICK[f'{where} x 1000, once'], SICK['loss x 1000, ten times']
    protocol = replace(SICK[f'{where} x 1000, ten times'], iterations=400)
    ours = run_protected(protocol)
    assert ours.count('step_fault', 'fault') == {'transient': 10}
    assert ours.count('intervention', 'action') == {}
    clean = run_stock(protocol)
    assert ours.end == pytest.approx(clean.end, rel=0.1)
    assert once.hooks != often.hooks


def test_a_bad_sample_is_named_and_what_it_did_is_undone():
    ours = run_protected(SICK['a bad sample, SGD without clipping'])
    held = [one for one in ours.events if one['event'] == 'held_step']
    assert {one['verdict'] for one in held} == {'reproducible'}
    assert ['index=1000'] in [one['samples'] for one in held]
    done = [one for one in ours.events if one['event'] == 'intervention']
    assert done[0]['action'] == 'rollback'
    # The step after the one that the sample has thrown is the first bad one.
    assert 0 <= done[0]['since'] - held[0]['iteration'] <= 1
    assert ends_well(ours)


@pytest.mark.parametrize(
    'share', [pytest.param('1', marks=pytest.mark.soak), '3']
)
def test_bad_samples_use_no_rollback(share):
    ours = run_protected(SICK[f'NaN in {share} % of the samples'])
    assert ours.error == ''
    assert set(ours.count('step_fault', 'fault')) == {'nan_loss'}
    assert set(ours.count('intervention', 'action')) <= {'warn'}
    assert ours.end < 0.8


@pytest.mark.parametrize('what', ['NaN', 'x 1e6'])
def test_weights_that_a_hook_has_spoiled_go_back(what):
    ours = run_protected(SICK[f'weights {what} by a hook'])
    assert ours.count('intervention', 'action') == {'rollback': 1}
    assert ours.error == ''
    assert ours.end < 1.0


def test_a_transformer_without_warm_up_is_stopped_with_the_reason():
    protocol = SICK['a transformer without warm-up']
    assert not math.isfinite(run_stock(protocol).losses[-1])
    ours = run_protected(protocol)
    assert ends_well(ours)
    assert ours.count('intervention', 'action')['rollback']


def test_every_protocol_has_a_seed():
    assert random_healthy(3) == random_healthy(3) != random_healthy(4)
    assert protocols.Protocol() == protocols.Protocol()
