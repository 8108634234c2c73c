"""Whatever is skipped, a schedule never runs ahead and ends with the run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmstable.state.schedules import ScheduleBacklog


def positions(losses, backlog=None, done=0, place=0, total=None):
    """Where the schedule is after each iteration."""
    backlog = backlog or ScheduleBacklog()
    total = len(losses) if total is None else total
    places = []
    for now, lost in enumerate(losses, done + 1):
        place += backlog.advance(total - now, lost)
        places.append(place)
    return places


def test_two_skips_by_hand():
    losses = [0, 0, 1, 1, 0, 0, 0, 0, 0, 0]
    assert positions(losses) == [1, 2, 2, 2, 3, 5, 6, 7, 9, 10]


def test_a_window_is_waited_for_as_a_whole():
    # Windows of four; the first one is lost.
    losses = [0, 0, 0, 4] + [0] * 36
    found = positions(losses)
    # The step of iteration 8 gets the value that the lost one had.
    assert found[6] == found[2] == 3
    assert found[7] == 4
    assert found[-1] == 40


@pytest.mark.parametrize('total', [1, 2, 7, 100])
def test_without_skips_it_moves_with_the_run(total):
    backlog = ScheduleBacklog()
    assert positions([0] * total, backlog) == list(range(1, total + 1))
    assert backlog.state_dict() == {}


@st.composite
def patterns(draw: st.DrawFn) -> list[int]:
    """What each iteration of a run loses: the window it is the last of."""
    window = draw(st.sampled_from([1, 2, 5]))
    is_lost = draw(st.lists(st.booleans(), min_size=1, max_size=120))
    return [
        window if lost and not step % window else 0
        for step, lost in enumerate(is_lost, 1)
    ]


@given(patterns(), st.integers(0, 60))
def test_any_pattern(losses, extra):
    backlog = ScheduleBacklog()
    backlog.add(extra)
    place, total = -extra, len(losses)
    for done, lost in enumerate(losses, 1):
        steps = backlog.advance(total - done, lost)
        assert steps >= 0
        assert not (lost and steps)
        place += steps
        assert backlog.steps >= 0
        assert place + backlog.steps == done
    if losses[-1] == 0:
        assert (backlog.steps, place) == (0, total)


@given(patterns())
def test_the_end_is_reached_by_one_step_at_a_time_if_it_can_be(losses):
    total, backlog = len(losses), ScheduleBacklog()
    for done, lost in enumerate(losses, 1):
        owed, left = backlog.steps, total - done
        steps = backlog.advance(left, lost)
        if owed <= left:
            assert steps <= 2


def test_what_is_owed_is_spread_evenly():
    backlog = ScheduleBacklog()
    backlog.add(10)
    steps = [backlog.advance(999 - i) for i in range(1000)]
    extra = [i for i, count in enumerate(steps) if count > 1]
    assert len(extra) == 10
    assert {b - a for a, b in zip(extra, extra[1:])} == {100}


def test_more_than_is_left_is_paid_by_several_at_once():
    backlog = ScheduleBacklog()
    backlog.add(50)
    assert [backlog.advance(9 - i) for i in range(10)] == [6] * 10


@given(patterns(), st.data())
def test_a_resume_anywhere_continues_the_same(losses, data):
    total = len(losses)
    cut = data.draw(st.integers(0, total))
    first, second = ScheduleBacklog(), ScheduleBacklog()
    found = positions(losses[:cut], first, total=total)
    state = first.state_dict()
    if state:
        second.load_state_dict(ScheduleBacklog.saved(state))
    place = found[-1] if found else 0
    found += positions(losses[cut:], second, cut, place, total)
    assert found == positions(losses)


def test_a_run_of_another_length_is_planned_anew():
    backlog, other = ScheduleBacklog(), ScheduleBacklog()
    for left in range(99, 49, -1):
        backlog.advance(left, lost=int(left > 89))
    assert backlog.steps > 0
    other.load_state_dict(ScheduleBacklog.saved(backlog.state_dict()))
    place = 50 - backlog.steps
    # Twice as long: after 50 iterations 150 are left.
    steps = [other.advance(149 - i) for i in range(150)]
    assert place + sum(steps) == 200
    assert max(steps) == 2
    extra = [i for i, count in enumerate(steps) if count > 1]
    assert min(b - a for a, b in zip(extra, extra[1:])) > 10


def test_a_run_may_go_on_after_its_end():
    backlog = ScheduleBacklog()
    steps = [
        backlog.advance(left, lost=int(left == -2)) for left in (0, -1, -2)
    ]
    assert steps == [1, 1, 0]
    assert backlog.advance(-3) == 2
