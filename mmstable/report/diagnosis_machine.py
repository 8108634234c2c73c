"""Checks of single events: memory, time, hangs, and where faults begin."""

from __future__ import annotations

from collections import Counter
from functools import partial
from statistics import median
from typing import Any, get_type_hints

from mmstable.events.records import EVENTS
from mmstable.finding import Finding, Severity
from mmstable.io.schema import finite, mapping, text_or_empty, texts, whole
from mmstable.messages import N_, _
from mmstable.report.history import (
    History,
    Series,
    iteration_of,
    ordered,
    text_of,
)

_LEAST_POINTS = 8
# Growth of memory that is reported: as a share of the first value, and MiB.
_GROWTH, _LEAST_GROWTH = 0.1, 200.0
# Shares of the time of an iteration.
_WAITING, _MOSTLY = 0.3, 0.5
# Seconds of a whole run that are not worth a finding.
_LITTLE = 60.0

# Where an iteration spends the time that a cause takes; others are none of
# its parts.
_PHASE_OF = {
    'data': 'data',
    'module': 'forward',
    'hook': 'hooks',
    'backward': 'backward',
    'step': 'step',
}
_SLOW = {
    'straggler': N_('The ranks wait for the slowest of them.'),
    'validation': N_('Much of the time goes to validation.'),
    'rare': N_(
        'Much of the time goes by between the iterations that were measured.'
    ),
}


def growth(series: Series) -> tuple[float, float, float]:
    """What memory was held at first and at last, and what 1000 iterations add.

    The first tenth is left out: there a run still allocates its buffers.
    """
    x, y = ordered(series)
    x, y = x[len(x) // 10 :], y[len(y) // 10 :]
    quarter = max(1, len(x) // 4)
    first, last = median(y[:quarter]), median(y[-quarter:])
    span = median(x[-quarter:]) - median(x[:quarter])
    return first, last, 1000 * (last - first) / max(1.0, span)


def memory_growth(history: History) -> Finding | None:
    """Host memory that grows, or an alarm about it."""
    alarms = [
        one
        for one in history.incidents('memory_alarm')
        if text_of(one, 'resource') in ('host', 'shared_memory')
    ]
    series = history.starts[-1].series
    held = series.get(('memory', 'host_tree'))
    if held is None or len(held) < _LEAST_POINTS:
        held = series.get(('memory', 'host_memory'), Series())
    if len(held) < _LEAST_POINTS and not alarms:
        return None
    first, last, rate = growth(held) if len(held) else (0.0, 0.0, 0.0)
    grows = last - first > max(_LEAST_GROWTH, _GROWTH * first)
    if not grows and not alarms:
        return None
    return Finding(
        id='memory_growth',
        severity=Severity.ERROR if alarms else Severity.WARNING,
        what=_(
            'Host memory went from {first:.0f} to {last:.0f} MiB.',
            first=first,
            last=last,
        ),
        why=_(
            'About {rate:.0f} MiB in 1000 iterations; MemoryGuardHook gave '
            '{alarms:alarm|alarms}.',
            rate=rate,
            alarms=len(alarms),
        ),
        fix=_(
            'Something keeps references: losses with their graph, lists in a '
            'data set, workers with copies of them.'
        ),
    )


def out_of_memory(history: History) -> Finding | None:
    """Batches that did not fit."""
    found = history.incidents('out_of_memory')
    if not found:
        return None
    rungs = Counter(text_of(one, 'rung') for one in found)
    severity = Severity.WARNING if rungs['skip'] else Severity.HINT
    if rungs['stop']:
        severity = Severity.ERROR
    files = list(filter(None, (_below(history, one) for one in found)))
    phases = Counter(text_of(one, 'phase') for one in found)
    return Finding(
        id='out_of_memory',
        severity=severity,
        what=_(
            '{count:batch|batches} did not fit in memory.', count=len(found)
        ),
        why=_(
            'Where: {phases}. What was done: {rungs}.',
            phases=[f'{n} {name}' for name, n in phases.most_common(3)],
            rungs=[f'{n} {name}' for name, n in rungs.most_common(3)],
        ),
        fix=_(
            'See {file}, or ask before training: mmstable estimate CONFIG.',
            file=files[-1],
        )
        if files
        else _('Ask what fits before training: mmstable estimate CONFIG.'),
    )


def _below(history: History, record: dict[str, Any]) -> str:
    """The file that tells more, as seen from the work directory."""
    path = text_of(record, 'report')
    return path.replace(f'{history.path.resolve()}/', '', 1)


def slow_phase(history: History) -> Finding | None:
    """What takes the time of an iteration, if anything takes too much."""
    profiles = history.incidents('iteration_profile')
    if not profiles and not history.labels('phases'):
        return _waiting(history)
    if not profiles:
        # It was measured, and nothing was slow.
        return None
    last = profiles[-1]
    seconds = {
        name: value
        for name, one in mapping(last.get('phases')).items()
        if (value := finite(one)) is not None and value > 0
    }
    causes = texts(last.get('causes'))
    if not causes or not seconds:
        return None
    whole = sum(seconds.values())
    phase = _PHASE_OF.get(causes[0], '')
    if not _matters(history, seconds.get(phase, whole)):
        return None
    if phase in seconds:
        share = seconds[phase] / whole
        what = _(
            '{share:.0%} of the time of an iteration goes to: {phase}.',
            phase=phase,
            share=share,
        )
    else:
        what = _(_SLOW[causes[0] if causes[0] in _SLOW else 'rare'])
    return Finding(
        id='slow_phase',
        severity=Severity.WARNING,
        path=phase,
        what=what,
        why=_('{text}', text=text_of(last, 'text')),
        fix=_('What takes how long: mmstable profile CONFIG.'),
    )


def _matters(history: History, seconds: float) -> bool:
    """Whether so much of each iteration is missed in the end."""
    last = history.starts[-1]
    most = max(last.header.max_iterations, last.last_iteration)
    return seconds * most >= _LITTLE


def _waiting(history: History) -> Finding | None:
    """Without a profile, mmengine tells how long it waits for data."""
    whole = history.line('mean_time', 'time')
    data = history.line('mean_time', 'data_time')
    times = {x: y for x, y in zip(whole.x, whole.y) if finite(y)}
    shares = [
        y / times[x]
        for x, y in zip(data.x, data.y)
        if finite(y) is not None and x in times
    ]
    # The first ones have started the workers.
    shares = shares[len(shares) // 5 :]
    if len(shares) < 3 or median(shares) < _WAITING:
        return None
    share = median(shares)
    if not _matters(history, median(data.y)):
        return None
    return Finding(
        id='slow_phase',
        severity=Severity.WARNING if share >= _MOSTLY else Severity.HINT,
        what=_('{share:.0%} of the time is waiting for data.', share=share),
        why=_(
            'Of {whole:.3f} s for an iteration, {data:.3f} s are spent '
            'loading data.',
            data=median(data.y),
            whole=median(whole.y),
        ),
        fix=_(
            'Use more workers (train_dataloader.num_workers), as far as '
            'there are cores, and keep them (persistent_workers=True).'
        ),
    )


# How bad a verdict of a replay is, where the fault was, and what to do.
_VERDICTS = {
    'fp16_overflow': (
        Severity.WARNING,
        N_('Values leave the range of fp16 in {module} ({count:time|times}).'),
        N_('Run this module in float32.'),
    ),
    'bad_input': (
        Severity.WARNING,
        N_('The input was bad before {module} saw it ({count:time|times}).'),
        N_('Find and fix the samples: mmstable check-data CONFIG.'),
    ),
    'bad_weights': (
        Severity.ERROR,
        N_('{module} held NaN or Inf ({count:time|times}).'),
        N_(
            'Go back to a checkpoint from before; '
            'mmstable.DivergenceGuardHook does so automatically.'
        ),
    ),
    'domain_error': (
        Severity.ERROR,
        N_(
            'An operation in {module} is not defined for what it gets '
            '({count:time|times}).'
        ),
        N_(
            'Guard the operand in that line: clamp it, add an epsilon, or '
            'leave out empty targets.'
        ),
    ),
    'exploding': (
        Severity.ERROR,
        N_('Values explode in {module} ({count:time|times}).'),
        N_(
            'Lower the learning rate, lengthen the warm-up, or clip gradients.'
        ),
    ),
    'fp16_underflow': (
        Severity.WARNING,
        N_('A number is 0 in fp16 only in {module} ({count:time|times}).'),
        N_('Run this module in float32, or use an epsilon of at least 1e-6.'),
    ),
    'out_of_range': (
        Severity.ERROR,
        N_(
            'A label or index was out of range in {module} '
            '({count:time|times}).'
        ),
        N_(
            'Correct the annotation, num_classes or ignore_index: mmstable '
            'check-data CONFIG lists such samples.'
        ),
    ),
    'raised': (
        Severity.ERROR,
        N_(
            'The training step raised an error in {module} '
            '({count:time|times}).'
        ),
        N_('Fix that line, or leave out the samples named above.'),
    ),
}
_SOURCES = {
    'parameter': N_('the parameter'),
    'buffer': N_('the buffer'),
    'batch': N_('the batch'),
    'outside': N_('a value from outside'),
}


def fault_place(history: History) -> Finding | None:
    """The module and the line that most faults come from."""
    explained = [
        one
        for one in history.incidents('fault_explained')
        if text_of(one, 'verdict') in _VERDICTS
    ]
    if not explained:
        return None
    places = Counter(map(_place, explained))
    place, count = places.most_common(1)[0]
    verdict, module, line = place
    last = [one for one in explained if _place(one) == place][-1]
    severity, what, fix = _VERDICTS[verdict]
    if verdict == 'bad_weights' and _went_back(history, last):
        severity = Severity.WARNING
        fix = N_(
            'The run was rolled back to a good state; nothing is left to do.'
        )
    return Finding(
        id='fault_place',
        severity=severity,
        path=module,
        what=_(what, module=module or _('the model itself'), count=count),
        why=_evidence(last),
        fix=_(fix),
        source=line,
        change=_change(history, verdict, module),
    )


def _evidence(explained: dict[str, Any]) -> str:
    """Describe where a fault began, in the language of the page."""
    facts = {
        'kind': text_of(explained, 'kind') or 'NaN',
        'iteration': iteration_of(explained),
        'module': text_of(explained, 'module') or _('the model itself'),
        'lines': texts(explained.get('lines'))[:2] or ['?'],
        'values': texts(explained.get('inputs'))[:2]
        or [text_of(explained, 'output')],
    }
    if text_of(explained, 'source'):
        text = _(
            'Iter {iteration}: {kind} was in {source} {name} before the step; '
            'first used in {module} ({lines: <- }).',
            source=_(_SOURCES.get(text_of(explained, 'source'), '?')),
            name=text_of(explained, 'name'),
            **facts,
        )
    else:
        text = _(
            'Iter {iteration}: first {kind} in {module} ({lines: <- }): '
            '{op} of {values}.',
            op=text_of(explained, 'node') or text_of(explained, 'op'),
            **facts,
        )
    names = texts(explained.get('sample_names'))
    return text + (_(' Samples: {names}.', names=names[:5]) if names else '')


def _went_back(history: History, explained: dict[str, Any]) -> bool:
    """Whether the run has restored a good state since."""
    return any(
        one.get('restored') is not None
        and iteration_of(one) >= iteration_of(explained)
        for one in history.incidents('intervention')
    )


def _place(explained: dict[str, Any]) -> tuple[str, str, str]:
    lines = texts(explained.get('lines'))
    module = text_of(explained, 'module')
    if text_of(explained, 'source') in ('parameter', 'buffer'):
        module = text_of(explained, 'name') or module
    return (
        text_of(explained, 'verdict'),
        module,
        ' <- '.join(lines[:2]),
    )


def _change(history: History, verdict: str, module: str) -> dict[str, Any]:
    if verdict != 'fp16_overflow' or not module:
        return {}
    last = history.starts[-1]
    for name, wrapper in last.header.wrappers.items():
        if 'SafeAmp' in wrapper.type:
            return {f'{last.config_path(name)}.fp32_modules': [module]}
    return {}


def data_suspects(history: History) -> Finding | None:
    """Samples that were there when it happened, more than once or alone."""
    names: Counter[str] = Counter()
    alone: set[str] = set()
    for one in history.incidents('fault_explained'):
        samples = set(texts(one.get('sample_names')))
        names.update(samples)
        if text_of(one, 'verdict') == 'bad_input':
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
        what=_(
            '{count:sample is|samples are} under suspicion.',
            count=len(suspects),
        ),
        why=_('Found where faults began: {names}.', names=suspects[:5]),
        fix=_('Look at them, or leave them out: mmstable check-data CONFIG.'),
    )


def injected_faults(history: History) -> Finding | None:
    """What was done to the run on purpose."""
    kinds: Counter[str] = Counter()
    for one in history.incidents('injected_fault'):
        kinds[text_of(one, 'kind')] += 1
    count = sum(start.counts['injected_fault'] for start in history.starts)
    if not count:
        return None
    return Finding(
        id='injected_faults',
        severity=Severity.HINT,
        what=_(
            '{count:fault was|faults were} injected on purpose.', count=count
        ),
        why=_('By FaultInjectorHook: {kinds}.', kinds=list(kinds)[:10]),
        fix=_('This was a drill. Remove the hook before you train for real.'),
    )


_WARNED = N_('HeadroomHook has warned {count:time|times}.')
# The finding, the kind of event, fields that such events have, severity, what
# happened, the evidence, what to do, and the field that says where. The texts
# can use all fields of the newest event, and the count of them.
_EVENT_ROWS: tuple[tuple[Any, ...], ...] = (
    (
        'unsaved',
        'checkpoint_failed',
        {},
        Severity.WARNING,
        N_(
            '{count:checkpoint was|checkpoints were} not saved, at last '
            '{name} at iteration {iteration}.'
        ),
        N_('{reason}'),
        N_(
            'Make room on the disk of the work directory, or keep fewer '
            'checkpoints (max_keep_ckpts).'
        ),
        '',
    ),
    (
        'hang',
        'hang',
        {},
        Severity.ERROR,
        N_(
            'The run hung {count:time|times}, at last in the phase '
            '{phase!r} for {seconds:.0f} s.'
        ),
        N_('Rank {rank} was at {line}; stacks: {file}'),
        N_('Read the stacks; `mmstable doctor` tests the machine.'),
        'phase',
    ),
    (
        'low_headroom',
        'low_headroom',
        dict(problem='overflow'),
        Severity.WARNING,
        N_(
            '{module} uses {share:.0%} of the range of fp16 (iteration '
            '{iteration}).'
        ),
        _WARNED,
        N_('Run it in float32 (fp32_modules), or train in bf16.'),
        'module',
    ),
    (
        'low_headroom',
        'low_headroom',
        dict(problem='underflow'),
        Severity.WARNING,
        N_(
            '{share:.0%} of the fp16 gradients became zero, most in '
            '{module} (iteration {iteration}).'
        ),
        _WARNED,
        N_('Raise the loss scale, or let it move.'),
        'module',
    ),
    (
        'replicas_diverged',
        'replicas_diverged',
        {},
        Severity.ERROR,
        N_(
            'Ranks {ranks} did not hold the same state as the others '
            '({count:time|times}).'
        ),
        N_('At last seen in {name}.'),
        N_(
            'Test that machine: mmstable doctor. ReplicaCheckHook can repair '
            'such ranks.'
        ),
        'name',
    ),
)
_READ = {
    str: text_or_empty,
    int: whole,
    float: lambda value: finite(value) or 0.0,
}


def _about_events(row: tuple[Any, ...], history: History) -> Finding | None:
    id, kind, match, severity, what, why, fix, where = row
    found = history.incidents(kind, **match)
    if not found:
        return None
    last = found[-1]
    facts: dict[str, Any] = {
        name: _READ[hint](last.get(name)) if hint in _READ else last.get(name)
        for name, hint in get_type_hints(EVENTS[kind]).items()
    }
    is_last = facts['iteration'] >= history.starts[-1].last_iteration
    if id == 'unsaved' and is_last:
        severity = Severity.ERROR
    facts['count'] = len(found)
    return Finding(
        id=id,
        severity=severity,
        path=facts.get(where, ''),
        what=_(what, **facts),
        why=_(why, **facts),
        fix=_(fix),
        source=facts.get('line', ''),
    )


EVENT_CHECKS = tuple(partial(_about_events, row) for row in _EVENT_ROWS)
