"""The few figures that sum up a history."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from mmstable.finding import Finding, Severity
from mmstable.messages import _
from mmstable.report.diagnosis.endings import state_of
from mmstable.report.diagnosis.losses import main_loss
from mmstable.report.diagnosis.wasted import wasted_iterations
from mmstable.report.history import History, iteration_seconds

_LEAST_STEPS = 20


class Figures(NamedTuple):
    """What a run is compared by; None where nothing is known.

    Args:
        state (str): How it ended.
        iterations (int): The iteration it has come to.
        most (int): The iteration it is to end with.
        steps (int): Steps that were made or skipped.
        skipped (int): Those that were skipped.
        faults (int): Bad steps.
        rollbacks (int): How often it went back.
        wasted (int): Iterations that came to nothing.
        starts (int): How often it was started.
        last_loss (float, optional): The newest loss.
        best_loss (float, optional): The lowest one.
        loss_scale (float, optional): The newest loss scale.
        seconds (float, optional): Of an iteration.
        duration (float): Seconds in which it ran.
    """

    state: str
    iterations: int
    most: int
    steps: int
    skipped: int
    faults: int
    rollbacks: int
    wasted: int
    starts: int
    last_loss: float | None
    best_loss: float | None
    loss_scale: float | None
    seconds: float | None
    duration: float


def figures_of(history: History) -> Figures:
    """The figures of a history."""
    last = history.starts[-1]
    losses = [y for y in main_loss(history).y if math.isfinite(y)]
    scales = [one.y[-1] for one in last.scales.values() if len(one)]
    rollbacks = [
        one
        for one in history.incidents('intervention')
        if one.get('action') == 'rollback'
    ]
    return Figures(
        state=state_of(last),
        iterations=history.iterations,
        most=last.header.max_iterations,
        steps=history.steps,
        skipped=history.skipped,
        faults=sum(history.faults.values()),
        rollbacks=len(rollbacks),
        wasted=sum(wasted_iterations(history)),
        starts=len(history.starts),
        last_loss=losses[-1] if losses else None,
        best_loss=min(losses) if losses else None,
        loss_scale=scales[0] if scales else None,
        seconds=iteration_seconds(history),
        duration=sum(
            max(0.0, one.last_time - one.header.time) for one in history.starts
        ),
    )


def headline(history: History, findings: list[Finding]) -> str:
    """The whole diagnosis in one sentence."""
    serious = [one for one in findings if one.severity is not Severity.HINT]
    steps, skipped = history.steps, history.skipped
    if serious:
        return _(
            '{count:finding needs|findings need} your attention.',
            count=len(serious),
        )
    if steps < _LEAST_STEPS:
        return _(
            'Too little has happened to say anything: {steps:step|steps}.',
            steps=steps,
        )
    if skipped or findings:
        return _(
            'Nothing serious: {steps:step|steps}, {skipped} skipped.',
            steps=steps,
            skipped=skipped,
        )
    return _(
        'Nothing is wrong: {steps:step|steps}, none skipped, no alarm.',
        steps=steps,
    )


def notes_of(history: History) -> list[str]:
    """What could not be read."""
    notes = [_('left out: {text}', text=one) for one in history.problems]
    for start in [*history.earlier, *history.starts]:
        if start.bad_lines:
            notes.append(
                _(
                    '{path}: {count:line was|lines were} not readable',
                    path=start.path,
                    count=start.bad_lines,
                )
            )
        if start.is_cut_off and start.end is None:
            notes.append(
                _(
                    '{path}: the last line is cut off, as a killed process '
                    'leaves it',
                    path=start.path,
                )
            )
        if start.is_newer:
            notes.append(
                _(
                    '{path} was written by a newer mmstable: what this one '
                    'does not know is shown as it is',
                    path=start.path,
                )
            )
    return notes[:20]


def worst(findings: list[Finding]) -> str:
    """The severity of the worst finding, 'good' without any serious one."""
    serious: list[Any] = [
        one.severity.value
        for one in findings
        if one.severity is not Severity.HINT
    ]
    return serious[0] if serious else 'good'
