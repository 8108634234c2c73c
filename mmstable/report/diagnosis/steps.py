"""Steps that were skipped."""

from __future__ import annotations

from mmstable.finding import Finding, Severity
from mmstable.messages import N_, _
from mmstable.report.history import History

# Shares of skipped steps that are reported, and steps that it takes.
_MANY, _SOME = 0.05, 0.01
_LEAST_STEPS = 20
_TRENDS = {
    'grows': N_(
        'It gets worse: {early} bad steps in the first half, {late} in the '
        'second.'
    ),
    'falls': N_(
        'It gets better: {early} bad steps in the first half, {late} in the '
        'second.'
    ),
    'same': N_(
        'Spread evenly: {early} bad steps in the first half, {late} in the '
        'second.'
    ),
}
_FIXES = {
    'overflow': N_(
        'Single overflows are how a dynamic loss scale finds its level. If '
        'they keep coming, start lower, or train in bf16.'
    ),
    'nan_loss': N_(
        'The loss itself is NaN or Inf: look at the samples and the line '
        'that are named here. A lower loss scale does not help.'
    ),
    'nan_grad': N_(
        'Gradients are NaN although the scale cannot fall: look at the '
        'module and the line that are named here.'
    ),
    'spike': N_(
        'Loss or norm far above its level: clip gradients, lengthen the '
        'warm-up, or lower the learning rate.'
    ),
    'oom': N_(
        'Batches did not fit in memory: use a smaller batch, smaller crops, '
        'or a memory preset.'
    ),
}


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
        what=_(
            '{skipped} of {steps} steps were skipped ({rate:.1%}).',
            skipped=skipped,
            steps=steps,
            rate=rate,
        ),
        why=_('By fault: {kinds}. ', kinds=kinds)
        + _(_TRENDS[trend], early=early, late=late),
        fix=_(_FIXES[worst]) if worst in known else '',
    )


def _halves(history: History) -> tuple[int, int]:
    """Bad steps of the first and of the second half of all iterations."""
    middle = history.iterations / 2
    iterations = [x for start in history.starts for x in start.skipped.x]
    early = sum(x <= middle for x in iterations)
    return early, len(iterations) - early
