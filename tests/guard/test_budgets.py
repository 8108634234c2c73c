"""What is no reason to go back, and what still is."""

from __future__ import annotations

import random

import pytest
from mmengine.config import Config

from mmstable import config_path
from mmstable.errors import TrainingDiverged
from mmstable.events import Action, Fault
from tests.guard.runs import CAREFUL, Blow, Diary, Jump
from tests.toys import (
    Sabotage,
    ToyModel,
    assert_same,
    toy_runner,
    weights,
)

GUARD = dict(type='mmstable.DivergenceGuardHook')
SCALED = dict(
    type='mmstable.SafeAmpOptimWrapper',
    loss_scale=2.0**16,
    fp32_modules=['net'],
    optimizer=dict(type='SGD', lr=1e-9),
)


class HalfGradients(ToyModel):
    """Its gradients pass through float16 on their way, on any device."""

    def forward(self, inputs, targets, mode='tensor'):
        outputs = super().forward(inputs, targets, mode)
        if mode == 'loss':
            outputs['loss'].register_hook(_through_half)
        return outputs


def _through_half(grad):
    return (grad / 4).half().float() * 4


def train(folder, hooks, wrapper, iters, **kwargs):
    diary = Diary()
    runner = toy_runner(folder, wrapper, iters, [*hooks, diary], **kwargs)
    runner.diary = diary
    runner.train()
    return runner


def grown(at, iters):
    """From an iteration on the loss is 2^16 times larger."""
    return Jump(range(at, iters + 1), 2.0**16)


def test_a_falling_scale_is_no_reason_to_go_back(tmp_path):
    """The loss gets 2^16 times larger; 15 skips settle it."""

    def run(folder, *hooks):
        return train(
            tmp_path / folder,
            [grown(25, 45), *hooks],
            dict(SCALED),
            45,
            model=HalfGradients(),
        )

    plain, guarded = run('plain'), run('guarded', GUARD)
    for runner in (plain, guarded):
        wrapper = runner.optim_wrapper
        assert wrapper.steps.tally.faults == {'overflow': 15}
        assert wrapper.loss_scaler.get_scale() == 2.0
    # The objective has changed: that is reported, once.
    (done,) = guarded.diary.done
    assert (done.fault, done.action) == (Fault.DIVERGED, Action.WARN)
    assert_same(weights(guarded.model), weights(plain.model))


def test_a_new_level_of_the_loss_is_settled_too(tmp_path):
    runner = train(
        tmp_path,
        [grown(100, 160), GUARD],
        dict(SCALED),
        160,
        model=HalfGradients(),
    )
    wrapper = runner.optim_wrapper
    assert wrapper.steps.tally.faults == {'overflow': 15}
    assert wrapper.applied_steps == 160 - 15
    assert wrapper.last_step.applied
    assert {done.action.value for done in runner.diary.done} <= {
        'skip',
        'warn',
    }


def test_a_scale_at_its_floor_still_leads_back(tmp_path):
    floor = dict(
        SCALED, loss_scale=dict(init_scale=2.0**16, min_scale=2.0**13)
    )
    with pytest.raises(TrainingDiverged, match='because of nan_grad since'):
        train(
            tmp_path,
            [grown(30, 99), GUARD],
            floor,
            99,
            model=HalfGradients(),
        )


def test_a_frozen_scale_still_leads_back(tmp_path):
    frozen = dict(SCALED, loss_scale=dict(init_scale=2.0**16, frozen=True))
    with pytest.raises(TrainingDiverged, match='because of overflow since'):
        train(
            tmp_path,
            [grown(30, 99), GUARD],
            frozen,
            99,
            model=HalfGradients(),
        )


@pytest.mark.parametrize('interval', [10, 10**6], ids=['memory', 'disk'])
def test_a_rollback_keeps_a_lower_scale(tmp_path, interval):
    """Overflows, then losses that are Inf until the run is rolled back."""
    memory = 8.0 if interval == 10 else 0.0
    runner = train(
        tmp_path,
        [
            grown(21, 60),
            Blow([40]),
            dict(GUARD, snapshot_interval=20, max_snapshot_memory=memory),
        ],
        dict(SCALED),
        60,
        model=HalfGradients(),
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook', interval=20, by_epoch=False
            )
        ),
    )
    (done,) = (d for d in runner.diary.done if d.action.value == 'rollback')
    assert done.restored == 20
    assert (done.source == 'memory') is (interval == 10)
    assert runner.optim_wrapper.loss_scaler.get_scale() <= 2.0
    assert runner.optim_wrapper.steps.tally.faults['overflow'] == 15


WINDOW = dict(CAREFUL, accumulative_counts=16)


@pytest.mark.soak
def test_one_percent_of_bad_micro_batches_is_no_incident(tmp_path):
    iters = 16 * 120
    bad = random.Random(0).sample(range(1, iters + 1), iters // 100)
    runner = train(tmp_path, [Sabotage(loss=bad), GUARD], dict(WINDOW), iters)
    tally = runner.optim_wrapper.steps.tally
    assert (tally.applied, tally.skipped) == (120, 0)
    assert tally.dropped_micro_batches == len(bad)
    assert runner.diary.done == []


def test_most_micro_batches_are_an_incident(tmp_path):
    bad = [n for n in range(161, 2000) if n % 16]
    with pytest.raises(TrainingDiverged, match='because of nan_loss since'):
        train(tmp_path, [Sabotage(loss=bad), GUARD], dict(WINDOW), 2000)


class Hard(Jump):
    """Some batches are harder than the others."""

    def __init__(self, share, iters, factor=10.0) -> None:
        draw = random.Random(1)
        at = {n for n in range(1, iters + 1) if draw.random() < share}
        super().__init__(at, factor)


def preset(name):
    path = config_path(f'_base_/stability/{name}.py')
    stability = Config.fromfile(path).stability
    return stability.guard.to_dict()


@pytest.mark.parametrize('name', ['default', 'safe', 'ultra_safe'])
def test_rare_hard_batches_are_no_incident(tmp_path, name):
    runner = train(
        tmp_path, [Hard(0.04, 600), preset(name)], dict(CAREFUL), 600
    )
    assert {done.action.value for done in runner.diary.done} <= {'skip'}
    assert runner.optim_wrapper.skipped_steps <= 5


FLAT = dict(CAREFUL, optimizer=dict(type='SGD', lr=1e-12))


@pytest.mark.parametrize('name', ['safe', 'ultra_safe'])
def test_nothing_but_spikes_becomes_the_new_level(tmp_path, name):
    """Every step is a spike from iteration 101 on."""
    jump = Jump(range(101, 200), 100.0)
    runner = train(tmp_path, [jump, preset(name)], dict(FLAT), 199)
    wrapper = runner.optim_wrapper
    assert {done.action.value for done in runner.diary.done} == {'skip'}
    assert wrapper.steps.tally.faults == {Fault.SPIKE.value: 20}
    assert wrapper.last_step.applied


@pytest.mark.parametrize('share', [0.1, 0.7])
def test_losses_that_are_mostly_zero_have_no_spikes(tmp_path, share):
    """As hinge and triplet losses have them, with gradients of zero."""
    runner = train(
        tmp_path, [Hard(share, 300, factor=0.0), GUARD], dict(CAREFUL), 300
    )
    assert runner.optim_wrapper.applied_steps == 300
    assert runner.diary.done == []
