"""Which action for which fault, and which incident first."""

from __future__ import annotations

import pytest

from mmstable.events import Action, Fault
from mmstable.guard.detector import Incident, Policy


def policy(**actions):
    return Policy('Guard', actions)


def incident(fault, since=1):
    return Incident(fault, 'why', since)


def test_defaults():
    default = policy()
    assert default[Fault.POISONED] is Action.ROLLBACK
    assert default[Fault.NAN_LOSS] is Action.ROLLBACK
    assert default[Fault.DIVERGED] is Action.ROLLBACK
    assert default[Fault.SPIKE] is Action.ASK
    assert default.holds_spikes
    assert not default.skips_spikes
    assert default.can_roll_back


def test_no_rollback_at_all():
    chosen = policy(
        overflow='warn',
        nan_loss='stop',
        nan_grad='lower_lr',
        poisoned='stop',
        diverged='warn',
    )
    assert not chosen.can_roll_back


def test_the_gravest_incident_is_the_one_with_the_gravest_action():
    spike, bad = incident(Fault.SPIKE), incident(Fault.NAN_LOSS)
    assert policy().gravest([spike, bad]) is bad
    assert policy(nan_loss='warn', spike='warn').gravest([spike, bad]) is spike


def test_of_equal_actions_poison_is_graver_and_then_the_first_counts():
    bad, poison = incident(Fault.NAN_LOSS), incident(Fault.POISONED)
    later = incident(Fault.NAN_LOSS, since=2)
    assert policy().gravest([bad, poison]) is poison
    assert policy().gravest([bad, later]) is bad
    assert policy().gravest([]) is None


@pytest.mark.parametrize(
    ('actions', 'message'),
    [
        (dict(nan='warn'), '^Guard: `actions`: no setting `nan`; there'),
        (
            dict(poisoned='skip'),
            r"`actions\['poisoned'\]` must be one of rollback, warn, stop, "
            "got 'skip'",
        ),
    ],
)
def test_unknown_faults_and_actions_are_refused(actions, message):
    with pytest.raises(ValueError, match=message):
        Policy('Guard', actions)
