"""Memory that runs out, data that comes late, and hangs."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import Any

from mmstable.finding import Finding, Severity
from mmstable.messages import N_, _
from mmstable.report.history import History
from mmstable.report.incidents import iteration_of
from mmstable.report.plain import finite, mapping, text, texts
from mmstable.report.series import Series, ordered

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
        if text(one.get('resource')) in ('host', 'shared_memory')
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
        path='',
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
    rungs = Counter(text(one.get('rung')) for one in found)
    severity = Severity.WARNING if rungs['skip'] else Severity.HINT
    if rungs['stop']:
        severity = Severity.ERROR
    files = list(filter(None, (_below(history, one) for one in found)))
    phases = Counter(text(one.get('phase')) for one in found)
    return Finding(
        id='out_of_memory',
        severity=severity,
        path='',
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
    path = text(record.get('report'))
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
        known = causes[0] in ('straggler', 'validation')
        what = _(_SLOW[causes[0] if known else 'rare'])
    return Finding(
        id='slow_phase',
        severity=Severity.WARNING,
        path=phase,
        what=what,
        why=_('{text}', text=text(last.get('text'))),
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
        path='',
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
        path='',
        what=_(
            '{count:checkpoint was|checkpoints were} not saved, at last '
            '{name} at iteration {iteration}.',
            count=len(found),
            name=text(last.get('name')),
            iteration=iteration,
        ),
        why=_('{text}', text=text(last.get('reason'))),
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
        path=text(last.get('phase')),
        what=_(
            'The run hung {count:time|times}, at last in the phase {phase!r} '
            'for {seconds:.0f} s.',
            count=len(found),
            phase=text(last.get('phase')),
            seconds=finite(last.get('seconds')) or 0.0,
        ),
        why=_('{text}', text=text(last.get('text'))),
        fix=_(
            'The stacks are in the folder of the run; mmstable doctor tests '
            'the machine.'
        ),
        source=text(last.get('line')),
    )
