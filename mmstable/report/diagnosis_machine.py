"""Checks of single events: memory, time, hangs, and where faults begin."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import Any

from mmstable.finding import Finding, Severity
from mmstable.io.schema import finite, mapping, texts, whole
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


def unsaved(history: History) -> Finding | None:
    """Checkpoints that could not be written; worst if the run ends so."""
    found = history.incidents('checkpoint_failed')
    if not found:
        return None
    last, iteration = found[-1], iteration_of(found[-1])
    is_end = iteration >= history.starts[-1].last_iteration
    return Finding(
        id='unsaved',
        severity=Severity.ERROR if is_end else Severity.WARNING,
        what=_(
            '{count:checkpoint was|checkpoints were} not saved, at last '
            '{name} at iteration {iteration}.',
            count=len(found),
            name=text_of(last, 'name'),
            iteration=iteration,
        ),
        why=_('{text}', text=text_of(last, 'reason')),
        fix=_(
            'Make room on the disk of the work directory, or keep fewer '
            'checkpoints (max_keep_ckpts).'
        ),
    )


def hangs(history: History) -> Finding | None:
    """Phases that took too long."""
    found = history.incidents('hang')
    if not found:
        return None
    last = found[-1]
    return Finding(
        id='hang',
        severity=Severity.ERROR,
        path=text_of(last, 'phase'),
        what=_(
            'The run hung {count:time|times}, at last in the phase {phase!r} '
            'for {seconds:.0f} s.',
            count=len(found),
            phase=text_of(last, 'phase'),
            seconds=finite(last.get('seconds')) or 0.0,
        ),
        why=_(
            'Rank {rank} was at {line}; stacks: {file}',
            rank=whole(last.get('rank')),
            line=text_of(last, 'line') or '?',
            file=text_of(last, 'file') or '-',
        ),
        fix=_('Read the stacks; `mmstable doctor` tests the machine.'),
        source=text_of(last, 'line'),
    )


# What a replay has found out, and how bad it is.
_SEVERITIES = {
    'fp16_overflow': Severity.WARNING,
    'bad_input': Severity.WARNING,
    'bad_weights': Severity.ERROR,
    'domain_error': Severity.ERROR,
    'exploding': Severity.ERROR,
    'fp16_underflow': Severity.WARNING,
    'out_of_range': Severity.ERROR,
    'raised': Severity.ERROR,
}
_PLACES = {
    'fp16_overflow': N_(
        'Values leave the range of fp16 in {module} ({count:time|times}).'
    ),
    'bad_input': N_(
        'The input was bad before {module} saw it ({count:time|times}).'
    ),
    'bad_weights': N_('{module} held NaN or Inf ({count:time|times}).'),
    'domain_error': N_(
        'An operation in {module} is not defined for what it gets '
        '({count:time|times}).'
    ),
    'exploding': N_('Values explode in {module} ({count:time|times}).'),
    'fp16_underflow': N_(
        'A number is 0 in fp16 only in {module} ({count:time|times}).'
    ),
    'out_of_range': N_(
        'A label or index was out of range in {module} ({count:time|times}).'
    ),
    'raised': N_(
        'The training step raised an error in {module} ({count:time|times}).'
    ),
}
_PLACE_FIXES = {
    'fp16_overflow': N_('Run this module in float32.'),
    'bad_input': N_('Find and fix the samples: mmstable check-data CONFIG.'),
    'bad_weights': N_(
        'Go back to a checkpoint from before; mmstable.DivergenceGuardHook '
        'does so automatically.'
    ),
    'domain_error': N_(
        'Guard the operand in that line: clamp it, add an epsilon, or leave '
        'out empty targets.'
    ),
    'exploding': N_(
        'Lower the learning rate, lengthen the warm-up, or clip gradients.'
    ),
    'fp16_underflow': N_(
        'Run this module in float32, or use an epsilon of at least 1e-6.'
    ),
    'out_of_range': N_(
        'Correct the annotation, num_classes or ignore_index: mmstable '
        'check-data CONFIG lists such samples.'
    ),
    'raised': N_('Fix that line, or leave out the samples named above.'),
}
_SOURCES = {
    'parameter': N_('the parameter'),
    'buffer': N_('the buffer'),
    'batch': N_('the batch'),
    'outside': N_('a value from outside'),
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
        if text_of(one, 'verdict') in _SEVERITIES
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
        why=_evidence(last),
        fix=_place_fix(history, verdict, last),
        source=line,
        change=_change(history, verdict, module),
    )


def _place_fix(
    history: History, verdict: str, explained: dict[str, Any]
) -> str:
    if verdict != 'bad_weights' or not _went_back(history, explained):
        return _(_PLACE_FIXES[verdict])
    return _('The run was rolled back to a good state; nothing is left to do.')


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
        why=_('First parameter affected in these steps; not replayed yet.'),
        fix=''
        if history.has_hook('FaultForensicsHook')
        else _(
            'Add mmstable.FaultForensicsHook: it names the operation, the '
            'line and the sample.'
        ),
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


def low_headroom(history: History) -> Finding | None:
    """Values that come close to the end of fp16."""
    found = history.incidents('low_headroom')
    if not found:
        return None
    last = found[-1]
    problem = text_of(last, 'problem')
    module = text_of(last, 'module')
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
    named = [rank for one in found for rank in one.get('ranks') or []]
    ranks = sorted({int(one) for one in named if finite(one) is not None})
    return Finding(
        id='replicas_diverged',
        severity=Severity.ERROR,
        path=text_of(found[0], 'name'),
        what=_(
            'Ranks {ranks} did not hold the same state as the others '
            '({count:time|times}).',
            count=len(found),
            ranks=ranks,
        ),
        why=_('First seen in {name}.', name=text_of(found[0], 'name')),
        fix=_(
            'Test that machine: mmstable doctor. ReplicaCheckHook can repair '
            'such ranks.'
        ),
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
