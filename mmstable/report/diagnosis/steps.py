"""Steps that were skipped."""

from __future__ import annotations

from mmstable.finding import Finding, Severity
from mmstable.messages import say
from mmstable.report.history import History

# Shares of skipped steps that are reported, and steps that it takes.
_MANY, _SOME = 0.05, 0.01
_LEAST_STEPS = 20


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
