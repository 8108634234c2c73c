"""Where faults come from: modules, lines, samples, ranks."""

from __future__ import annotations

from collections import Counter
from typing import Any

from mmstable.finding import Finding, Severity
from mmstable.messages import N_, _
from mmstable.report.history import History
from mmstable.report.incidents import iteration_of
from mmstable.report.plain import finite, text, texts

# What a replay has found out, and how bad it is.
_SEVERITIES = {
    'fp16_overflow': Severity.WARNING,
    'bad_input': Severity.WARNING,
    'bad_weights': Severity.ERROR,
    'singular_point': Severity.ERROR,
    'exploding': Severity.ERROR,
}
_PLACES = {
    'fp16_overflow': N_(
        'Values leave the range of fp16 in {module} ({count:time|times}).'
    ),
    'bad_input': N_(
        'The input was bad before {module} saw it ({count:time|times}).'
    ),
    'bad_weights': N_('{module} held NaN or Inf ({count:time|times}).'),
    'singular_point': N_(
        'An operation in {module} is not defined for what it gets '
        '({count:time|times}).'
    ),
    'exploding': N_('Values explode in {module} ({count:time|times}).'),
}
_PLACE_FIXES = {
    'fp16_overflow': N_('Run this module in float32.'),
    'bad_input': N_('Find and mend the samples: mmstable check-data CONFIG.'),
    'bad_weights': N_(
        'Go back to a checkpoint from before; with '
        'mmstable.DivergenceGuardHook a run does so by itself.'
    ),
    'singular_point': N_(
        'Guard the operand in that line: clamp it, add an epsilon, or leave '
        'out empty targets.'
    ),
    'exploding': N_(
        'Lower the learning rate, lengthen the warm-up, or clip gradients.'
    ),
}
_HEADROOM = {
    'overflow': N_(
        '{module} uses {share:.0%} of the range of fp16 (iteration '
        '{iteration}).'
    ),
    'underflow': N_(
        '{share:.0%} of the fp16 gradients became zero, most in {module} '
        '(iteration {iteration}).'
    ),
}
_HEADROOM_FIXES = {
    'overflow': N_('Run it in float32 (fp32_modules), or train in bf16.'),
    'underflow': N_('Raise the loss scale, or let it move.'),
}


def fault_place(history: History) -> Finding | None:
    """The module and the line that most faults come from."""
    explained = [
        one
        for one in history.incidents('fault_explained')
        if text(one.get('verdict')) in _SEVERITIES
    ]
    if not explained:
        return _by_culprits(history)
    places = Counter(map(_place, explained))
    place, count = places.most_common(1)[0]
    verdict, module, line = place
    last = [one for one in explained if _place(one) == place][-1]
    severity = _SEVERITIES[verdict]
    if verdict == 'bad_weights' and _went_back(history, last):
        severity = Severity.WARNING
    return Finding(
        id='fault_place',
        severity=severity,
        path=module,
        what=_(
            _PLACES[verdict],
            module=module or _('the model itself'),
            count=count,
        ),
        why=_('{text}', text=text(last.get('text'))),
        fix=_(_PLACE_FIXES[verdict]),
        source=line,
        change=_change(history, verdict, module),
    )


def _went_back(history: History, explained: dict[str, Any]) -> bool:
    """Whether the run has restored a good state since."""
    return any(
        one.get('restored') is not None
        and iteration_of(one) >= iteration_of(explained)
        for one in history.incidents('intervention')
    )


def _place(explained: dict[str, Any]) -> tuple[str, str, str]:
    lines = texts(explained.get('lines'))
    module = text(explained.get('module'))
    if text(explained.get('source')) in ('parameter', 'buffer'):
        module = text(explained.get('name')) or module
    return text(explained.get('verdict')), module, ' <- '.join(lines[:2])


def _by_culprits(history: History) -> Finding | None:
    modules: Counter[tuple[str, str]] = Counter()
    for start in history.starts:
        modules.update(start.modules)
    # A NaN in the loss reaches all modules: the first says nothing.
    counted = {
        (fault, module): count
        for (fault, module), count in modules.items()
        if fault != 'nan_loss'
    }
    if not counted:
        return None
    (fault, module), count = Counter(counted).most_common(1)[0]
    if count < 3 or count < 0.5 * sum(counted.values()):
        return None
    return Finding(
        id='fault_place',
        severity=Severity.HINT,
        path=module,
        what=_(
            'Most bad gradients begin in {module}: {count} of kind {fault}.',
            module=module,
            count=count,
            fault=fault,
        ),
        why=_(
            'It is the first culprit of these steps; nobody has replayed them.'
        ),
        fix=_(
            'Add mmstable.NanForensicsHook: it names the operation, the line '
            'and the sample.'
        ),
    )


def _change(history: History, verdict: str, module: str) -> dict[str, Any]:
    if verdict != 'fp16_overflow' or not module:
        return {}
    wrappers = history.starts[-1].header.wrappers
    names = [name for name, one in wrappers.items() if 'SafeAmp' in one.type]
    if not names:
        return {}
    place = (
        'optim_wrapper' if len(wrappers) == 1 else f'optim_wrapper.{names[0]}'
    )
    return {f'{place}.fp32_modules': [module]}


def data_suspects(history: History) -> Finding | None:
    """Samples that were there when it happened, more than once or alone."""
    names: Counter[str] = Counter()
    alone: set[str] = set()
    for one in history.incidents('fault_explained'):
        samples = set(texts(one.get('sample_names')))
        names.update(samples)
        if text(one.get('verdict')) == 'bad_input':
            alone |= samples
    suspects = [
        name
        for name, count in names.most_common()
        if count > 1 or name in alone
    ]
    if not suspects:
        return None
    return Finding(
        id='data_suspects',
        severity=Severity.WARNING,
        path='',
        what=_(
            '{count:sample is|samples are} under suspicion.',
            count=len(suspects),
        ),
        why=_('Found where faults began: {names}.', names=suspects[:5]),
        fix=_('Look at them, or leave them out: mmstable check-data CONFIG.'),
    )


def low_headroom(history: History) -> Finding | None:
    """Values that come close to the end of fp16."""
    found = history.incidents('low_headroom')
    if not found:
        return None
    last = found[-1]
    problem = text(last.get('problem'))
    module = text(last.get('module'))
    key = 'underflow' if problem == 'underflow' else 'overflow'
    return Finding(
        id='low_headroom',
        severity=Severity.WARNING,
        path=module,
        what=_(
            _HEADROOM[key],
            module=module,
            share=finite(last.get('share')) or 0.0,
            iteration=iteration_of(last),
        ),
        why=_('HeadroomHook has warned {count:time|times}.', count=len(found)),
        fix=_(_HEADROOM_FIXES[key]),
    )


def diverged_replicas(history: History) -> Finding | None:
    """Ranks that did not hold the same weights."""
    found = history.incidents('replicas_diverged')
    if not found:
        return None
    ranks = sorted(
        {
            int(rank)
            for one in found
            for rank in one.get('ranks') or []
            if finite(rank) is not None
        }
    )
    return Finding(
        id='replicas_diverged',
        severity=Severity.ERROR,
        path=text(found[0].get('name')),
        what=_(
            'Ranks {ranks} did not hold the same state as the others '
            '({count:time|times}).',
            count=len(found),
            ranks=ranks,
        ),
        why=_('First seen in {name}.', name=text(found[0].get('name'))),
        fix=_(
            'Test that machine: mmstable doctor. ReplicaCheckHook can repair '
            'such ranks.'
        ),
    )


def injected_faults(history: History) -> Finding | None:
    """What was done to the run on purpose."""
    kinds: Counter[str] = Counter()
    for one in history.incidents('injected_fault'):
        kinds[text(one.get('kind'))] += 1
    count = sum(start.counts['injected_fault'] for start in history.starts)
    if not count:
        return None
    return Finding(
        id='injected_faults',
        severity=Severity.HINT,
        path='',
        what=_(
            '{count:fault was|faults were} injected on purpose.', count=count
        ),
        why=_('By FaultInjectorHook: {kinds}.', kinds=list(kinds)[:10]),
        fix=_('This was a drill. Remove the hook before you train for real.'),
    )
