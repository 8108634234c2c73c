"""Steps that were skipped, and work that was done in vain."""

from __future__ import annotations

from mmstable.finding import Finding, Severity
from mmstable.messages import say
from mmstable.report.history import History, iteration_seconds
from mmstable.report.incidents import iteration_of
from mmstable.report.plain import finite, number

# Shares of all steps.
_MANY, _SOME = 0.05, 0.01
_LEAST_STEPS = 20
# A checkpoint this often loses that much at worst.
_CHECKPOINT_SECONDS = 600.0


def skip_rate(history: History) -> Finding | None:
    """How many steps were skipped, why, and whether it gets worse."""
    skipped, steps = history.skipped, history.steps
    if not skipped or steps < _LEAST_STEPS:
        return None
    rate = skipped / steps
    early, late = _halves(history)
    is_growing = late >= 5 and late > 2 * early
    severity = Severity.HINT
    if rate >= _MANY:
        severity = Severity.ERROR
    elif rate >= _SOME or is_growing:
        severity = Severity.WARNING
    kinds = [
        f'{count} {kind}' for kind, count in history.faults.most_common(4)
    ]
    trend = 'grows' if is_growing else 'falls' if early > 2 * late else 'same'
    worst = history.faults.most_common(1)[0][0]
    known = ('overflow', 'nan_loss', 'nan_grad', 'spike', 'oom')
    return Finding(
        id='skip_rate',
        severity=severity,
        path='',
        what=say(
            'diagnosis.skip_rate', skipped=skipped, steps=steps, rate=rate
        ),
        why=say('diagnosis.skip_kinds', kinds=kinds)
        + say(f'diagnosis.trend.{trend}', early=early, late=late),
        fix=say(f'diagnosis.skip_fix.{worst}') if worst in known else '',
    )


def _halves(history: History) -> tuple[int, int]:
    """Bad steps of the first and of the second half of all iterations."""
    middle = history.iterations / 2
    iterations = [x for start in history.starts for x in start.skipped.x]
    early = sum(x <= middle for x in iterations)
    return early, len(iterations) - early


def wasted_iterations(history: History) -> tuple[int, int, int]:
    """Iterations that were skipped, rolled back, and done again."""
    undone = 0
    for one in history.incidents('intervention'):
        restored = finite(one.get('restored'))
        if restored is not None:
            undone += max(0, iteration_of(one) - int(restored))
    again = sum(
        max(0, before.last_iteration - after.header.iteration)
        for before, after in zip(history.starts, history.starts[1:])
    )
    return history.skipped, undone, again


def wasted_work(history: History) -> Finding | None:
    """How much was trained for nothing, and how long nothing was trained."""
    skipped, undone, again = wasted_iterations(history)
    total = sum(one.done for one in history.starts)
    wasted = skipped + undone + again
    if total < _LEAST_STEPS or wasted <= skipped and wasted < _MANY * total:
        return None
    seconds = iteration_seconds(history) or 0.0
    pause = sum(
        max(0.0, after.header.time - before.last_time)
        for before, after in zip(history.starts, history.starts[1:])
    )
    share = wasted / total
    change = {}
    if again > _SOME * total and seconds:
        every = max(1, round(_CHECKPOINT_SECONDS / seconds))
        change = {
            'default_hooks.checkpoint.interval': min(
                every, max(1, again // 2)
            ),
            'default_hooks.checkpoint.by_epoch': False,
        }
    return Finding(
        id='wasted_work',
        severity=Severity.WARNING if share >= _MANY else Severity.HINT,
        path='',
        what=say(
            'diagnosis.wasted',
            wasted=wasted,
            share=share,
            time=duration(wasted * seconds),
        ),
        why=say(
            'diagnosis.wasted_why',
            skipped=skipped,
            undone=undone,
            again=again,
            pause=duration(pause),
        ),
        fix=say('diagnosis.wasted_fix') if change else '',
        change=change,
    )


def duration(seconds: float) -> str:
    """A time for people, as '2 h 05 min'."""
    if seconds < 60:
        return f'{seconds:.0f} s'
    minutes, rest = divmod(round(number(seconds) or 0), 60)
    if minutes < 60:
        return f'{minutes} min {rest:02d} s'
    return f'{minutes // 60} h {minutes % 60:02d} min'
