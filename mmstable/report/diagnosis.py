"""The diagnosis of a run: findings with evidence.

Each check is a function from a history to a finding, or None. Those here look
at the run as a whole: its end, loss, skipped steps, wasted iterations and loss
scale; those of ``diagnosis_machine.py`` at single events.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields
from itertools import groupby
from statistics import median
from typing import Any, NamedTuple

import psutil

from mmstable.errors import TrainingHangs, TrainingOutOfMemory
from mmstable.finding import Finding, Severity
from mmstable.io.schema import (
    finite,
    mapping,
    number_or_none,
    text_or_empty,
    whole,
)
from mmstable.messages import N_, _
from mmstable.messages.secrets import shell_command
from mmstable.optim.loss_scale import ScalePolicy
from mmstable.report.diagnosis_machine import (
    EVENT_CHECKS,
    data_suspects,
    fault_place,
    injected_faults,
    memory_growth,
    out_of_memory,
    slow_phase,
)
from mmstable.report.history import (
    History,
    Series,
    Start,
    iteration_of,
    iteration_seconds,
    log_folder,
    ordered,
    text_of,
)

# Seconds without a record after which a run that cannot be asked counts as
# dead.
_SILENCE = 600.0
# Characters that a terminal shows of a finding, less those around it.
_LONGEST_COMMAND = 300


def state_of(start: Start, now: float | None = None) -> str:
    """What became of a start: 'finished', 'stopped', 'exception', ...

    Args:
        start (Start): The start.
        now (float, optional): The time, for tests. Defaults to None.

    Returns:
        str: As in its last record; without one 'running' or 'killed' if its
        process can be asked, else 'running' if it has written something
        lately, and 'silent' if not. 'restarting' if it failed and its
        supervisor still runs.
    """
    state = _last_state(start, now)
    if state in ('exception', 'killed') and _is_supervised(start):
        return 'restarting'
    return state


def _is_supervised(start: Start) -> bool:
    pid = start.header.supervisor
    # A supervisor that writes the report itself has given up.
    if not 1 < pid < 2**31 or pid == os.getpid():
        return False
    process = start.process
    if process is None or not process.can_be_asked():
        return False
    try:
        # Not another process that got its number.
        return psutil.Process(pid).create_time() <= start.header.time
    except psutil.Error:
        return False


def _last_state(start: Start, now: float | None) -> str:
    if start.end is not None:
        reason = text_of(start.end, 'reason')
        known = ('finished', 'stopped', 'exception')
        return reason if reason in known else 'stopped'
    if start.process is not None and start.process.can_be_asked():
        # However long it is silent: a validation may take an hour.
        return 'running' if start.process.is_alive() else 'killed'
    age = (time.time() if now is None else now) - start.last_time
    return 'running' if age < _SILENCE else 'silent'


def bad_end(history: History) -> Finding | None:
    """The run has failed, or was killed."""
    last = history.starts[-1]
    state = state_of(last)
    stops = last.incidents.of('intervention', action='stop')
    if state == 'stopped' and stops:
        return _stopped_by_guard(last, stops[-1])
    if state in ('killed', 'silent'):
        return _without_end(last, state)
    return _failed(history) if state == 'exception' else None


def _without_end(start: Start, state: str) -> Finding:
    iteration = start.last_iteration
    severity = Severity.WARNING
    what = _(
        'The run fell silent at iteration {iteration}.', iteration=iteration
    )
    why = _(
        'There is no last record: it was killed, or the machine went down.'
    )
    if state == 'killed':
        severity = Severity.ERROR
        what = _(
            'The run was killed after iteration {iteration}.',
            iteration=iteration,
        )
        host = text_or_empty(start.header.host)
        why = _(
            'Process {pid} on {host} is gone, and has left no last record: '
            'it was killed (out of memory? see `dmesg`), it crashed, or the '
            'machine was started again.',
            pid=start.header.pid,
            host=host,
        )
    command = _resume_command(start)
    fix = _(
        '--max-restarts restarts a run automatically. Resume this one with: '
        '{command}',
        command=command,
    )
    if start.header.supervisor or start.header.restarts:
        fix = _(
            'It was restarted before, and ended again: find out why, then '
            'resume it with: {command}',
            command=command,
        )
    return Finding('bad_end', severity, what, why=why, fix=fix)


def _resume_command(start: Start) -> str:
    command = start.header.resume_command
    # Half a command is worse than a general one.
    is_fit = 0 < len(command) <= _LONGEST_COMMAND and command.isprintable()
    if not is_fit:
        folder = log_folder(start.path).parent
        command = shell_command(
            ['mmstable', 'train', 'CONFIG', '--work-dir', str(folder)]
        )
    return f'{command} --resume auto'


def _failed(history: History) -> Finding | None:
    last = history.starts[-1]
    error = _error_of(last)
    if any(error.startswith(name) for name in _explained(history)):
        # There is a finding about it, which says more.
        return None
    return Finding(
        id='bad_end',
        severity=Severity.ERROR,
        what=_(
            'The run ended with an error at iteration {iteration}.',
            iteration=last.last_iteration,
        ),
        why=_('{text}', text=error),
        fix=_(
            'Fix the error above, then resume with: {command}'
            if last.header.supervisor
            else 'Fix the error above (for transient errors use '
            '--max-restarts), then resume with: {command}',
            command=_resume_command(last),
        ),
    )


def _explained(history: History) -> list[str]:
    kinds = {'hang': TrainingHangs, 'out_of_memory': TrainingOutOfMemory}
    return [
        f'{error.__module__}.{error.__name__}: '
        for kind, error in kinds.items()
        if history.incidents(kind)
    ]


def _error_of(start: Start) -> str:
    """The line of a traceback that says what happened."""
    trace = mapping(start.end).get('traceback')
    lines = trace.splitlines() if isinstance(trace, str) else []
    error = ''
    for line in lines:
        if line.startswith(('  File "', 'Traceback (')):
            error = ''
        elif not error and line.strip() and not line.startswith(' '):
            error = line
    return text_or_empty(error)


def _stopped_by_guard(start: Start, stop: dict[str, Any]) -> Finding:
    rollbacks = start.incidents.of('intervention', action='rollback')
    since = whole(stop.get('since'))
    return Finding(
        id='bad_end',
        severity=Severity.ERROR,
        what=_(
            'The guard has stopped the run at iteration {iteration}: {fault} '
            'since iteration {since}, and {rollbacks:rollback|rollbacks} did '
            'not help.',
            iteration=iteration_of(stop),
            fault=text_of(stop, 'fault'),
            since=since,
            rollbacks=len(rollbacks),
        ),
        why=_('{text}', text=text_of(stop, 'reason')),
        fix=_(
            'Fix the cause that is named here, then resume from before it: '
            '{command}',
            command=f'{_resume_command(start)} --before-iter {since}',
        ),
    )


_PARTS = 8
_LEAST_POINTS = 24
_RISE = 1.5


def levels(series: Series) -> list[float]:
    """The median of each eighth of a series."""
    x, y = ordered(series)
    held = [value for value in y.tolist() if math.isfinite(value)]
    size = len(held) / _PARTS
    if len(held) < _LEAST_POINTS:
        return []
    cuts = [round(i * size) for i in range(_PARTS + 1)]
    return [median(held[a:b]) for a, b in zip(cuts, cuts[1:])]


def main_loss(history: History) -> Series:
    """The loss as mmengine logs it, or else as it was sampled."""
    logged = history.line('mean_loss', 'loss')
    sampled = history.line('loss', 'loss')
    return logged if len(logged) >= len(sampled) else sampled


def rising_loss(history: History) -> Finding | None:
    """The loss has left its best level and does not come back."""
    found = levels(main_loss(history))
    if not found:
        return None
    best, last = min(found), found[-1]
    if best <= 0 or last < _RISE * best or found[-2] < _RISE * best:
        return None
    return Finding(
        id='rising_loss',
        severity=Severity.WARNING,
        what=_(
            'The loss rises: {last:.4g} now, {best:.4g} at its best.',
            best=best,
            last=last,
        ),
        why=_(
            'The best was in part {part} of 8, and the last two parts are '
            'above it by half.',
            part=1 + found.index(best),
        ),
        fix=_('Lower the learning rate, or lengthen the warm-up.')
        if history.has_hook('DivergenceGuardHook')
        else _(
            'Lower the learning rate, or add mmstable.DivergenceGuardHook, '
            'which rolls back automatically.'
        ),
    )


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
        'Gradients are NaN and no loss scale is to blame: look at the '
        'module and the line that are named here.'
    ),
    'spike': N_(
        'Loss or norm far above its level: clip gradients, lengthen the '
        'warm-up, or lower the learning rate.'
    ),
    'transient': N_(
        'Steps went wrong, and were right when they were repeated: test the '
        'machine with `mmstable doctor`.'
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
    return Finding(
        id='skip_rate',
        severity=severity,
        what=_(
            '{skipped} of {steps} steps were skipped ({rate:.1%}).',
            skipped=skipped,
            steps=steps,
            rate=rate,
        ),
        why=_('By fault: {kinds}. ', kinds=kinds)
        + _(_TRENDS[trend], early=early, late=late),
        fix=_(_FIXES[worst]) if worst in _FIXES else '',
    )


def _halves(history: History) -> tuple[int, int]:
    """Bad steps of the first and of the second half of all iterations."""
    middle = history.iterations / 2
    iterations = [x for start in history.starts for x in start.skipped.x]
    early = sum(x <= middle for x in iterations)
    return early, len(iterations) - early


# The share of all iterations that is reported, and the fewest iterations of
# a run that is judged.
_MUCH_WASTED = 0.05
_LEAST = 20
# Seconds that are not worth a finding.
_LITTLE = 60.0
# The interval of checkpoints that is recommended.
_CHECKPOINT_SECONDS = 600.0


class Wasted(NamedTuple):
    """Iterations whose result was lost, each counted once.

    Args:
        skipped (int): Of skipped steps that no rollback has undone.
        undone (int): Undone by rollbacks.
        again (int): Done again after a restart.
    """

    skipped: int
    undone: int
    again: int


def wasted_iterations(history: History) -> Wasted:
    """What was trained for nothing."""
    skipped, undone = 0, 0
    for start in history.starts:
        spans = _undone(start)
        undone += sum(last - first for first, last in spans)
        x, is_skipped = start.skipped.arrays()
        x = x[is_skipped > 0]
        for first, last in spans:
            x = x[(x <= first) | (x > last)]
        skipped += len(x)
    again = sum(
        max(0, before.last_iteration - after.header.iteration)
        for before, after in zip(history.starts, history.starts[1:])
    )
    # A step may be of several iterations, and an iteration of several steps.
    share = _total(history) / max(1, history.steps)
    return Wasted(round(skipped * share), undone, again)


def _undone(start: Start) -> list[tuple[int, int]]:
    """From where to where; a rollback may reach beyond an earlier one."""
    spans: list[tuple[int, int]] = []
    for one in start.incidents.of('intervention'):
        restored = finite(one.get('restored'))
        if restored is None or restored >= iteration_of(one):
            continue
        first = max(int(restored), start.header.iteration)
        while spans and spans[-1][1] >= first:
            first = min(first, spans.pop()[0])
        spans.append((first, iteration_of(one)))
    return spans


def _total(history: History) -> int:
    return sum(one.done for one in history.starts)


def wasted_work(history: History) -> Finding | None:
    """How much was trained for nothing, and how long nothing was trained."""
    parts, total = wasted_iterations(history), _total(history)
    wasted = min(sum(parts), total)
    is_only_skipped = parts.undone == parts.again == 0
    if total < _LEAST or is_only_skipped and wasted < _MUCH_WASTED * total:
        return None
    seconds = iteration_seconds(history) or 0.0
    share, time = wasted / total, wasted * seconds
    change = {}
    if parts.again * seconds > _CHECKPOINT_SECONDS:
        interval = max(1, round(_CHECKPOINT_SECONDS / seconds))
        change = {
            'default_hooks.checkpoint.interval': interval,
            'default_hooks.checkpoint.by_epoch': False,
        }
    is_dear = share >= _MUCH_WASTED and (time >= _LITTLE or not seconds)
    return Finding(
        id='wasted_work',
        severity=Severity.WARNING if is_dear else Severity.HINT,
        what=_(
            '{wasted:iteration|iterations} ({share:.1%}, about {time}) were '
            'wasted.',
            wasted=wasted,
            share=share,
            time=duration(time) if seconds else '?',
        ),
        why=_(
            '{skipped} skipped, {undone} undone by rollbacks, {again} done '
            'again after restarts; {pause} between the starts.',
            **parts._asdict(),
            pause=duration(_pause(history)),
        ),
        fix=_('Save checkpoints more often, so that a restart loses less.')
        if change
        else '',
        change=change,
    )


def _pause(history: History) -> float:
    return sum(
        max(0.0, after.header.time - before.last_time)
        for before, after in zip(history.starts, history.starts[1:])
    )


def duration(seconds: float) -> str:
    """A time for people, as '2 h 05 min'."""
    if 0.05 <= seconds < 0.95:
        return f'{seconds:.1f} s'
    if seconds < 59.5:
        return f'{seconds:.0f} s'
    minutes, rest = divmod(round(number_or_none(seconds) or 0), 60)
    if minutes < 60:
        return f'{minutes} min {rest:02d} s'
    return f'{minutes // 60} h {minutes % 60:02d} min'


_LEAST_TEETH = 3


def teeth(scales: list[float]) -> tuple[int, float | None]:
    """How often a scale fell back from where it had just grown to.

    Args:
        scales (list[float]): The scale after each change.

    Returns:
        tuple: How often, and the highest scale that held.
    """
    levels: Counter[float] = Counter()
    for before, top, after in zip(scales, scales[1:], scales[2:]):
        if before < top and after < top:
            levels[after] += 1
    if not levels:
        return 0, None
    return sum(levels.values()), levels.most_common(1)[0][0]


def scale_sawtooth(history: History) -> Finding | None:
    """The scale grows into the same overflow again and again."""
    for name in history.scaled:
        held = [one.scales.get(name, Series()) for one in history.starts]
        changes = groupby(y for series in held for y in series.y)
        count, level = teeth([scale for scale, __ in changes])
        if count < _LEAST_TEETH or level is None:
            continue
        last = history.starts[-1]
        interval = _interval(last, name)
        return Finding(
            id='scale_sawtooth',
            severity=Severity.WARNING,
            what=_(
                'The loss scale grew {count:time|times} and fell back at '
                'once: {level:g} is what holds.',
                count=count,
                level=level,
            ),
            why=_(
                'Each of the {count} attempts cost a step, one after every '
                '{interval} clean steps.',
                count=count,
                interval=interval,
            ),
            fix=_(
                'Start at the scale that holds, and try a higher one less '
                'often.'
            ),
            change=_change(last, name, level, interval * 4),
        )
    return None


def _interval(start: Start, name: str) -> int:
    policy = mapping(start.header.wrappers[name].scale_policy)
    found = policy.get('growth_interval')
    return found if isinstance(found, int) and 0 < found < 10**9 else 2000


def _change(
    start: Start, name: str, level: float, interval: int
) -> dict[str, Any]:
    """The whole setting, because it may replace a number."""
    policy = mapping(start.header.wrappers[name].scale_policy)
    kept = {
        one.name: policy[one.name]
        for one in fields(ScalePolicy)
        if isinstance(policy.get(one.name), (int, float))
        and policy[one.name] != one.default
    }
    kept.update(init_scale=level, growth_interval=interval)
    place = start.config_path(name)
    return {f'{place}.loss_scale': {**kept, '_delete_': True}}


def start_warnings(history: History) -> Finding | None:
    """Problems of the config that were known before the run started."""
    lines = history.starts[-1].header.warnings
    if not lines:
        return None
    return Finding(
        id='start_warnings',
        severity=Severity.WARNING,
        what=_('The config has problems that were reported at the start.'),
        why=_('{lines:; }', lines=list(lines)),
    )


def goodput(history: History) -> float | None:
    """Return useful training time over wall time, all starts included."""
    starts = history.starts
    held = history.line('time', 'iteration').y
    held = held or history.line('mean_time', 'time').y
    seconds = [one for one in held if finite(one)]
    wall = starts[-1].last_time - starts[0].header.time
    if not seconds or wall <= 0:
        return None
    useful = max(0, _total(history) - sum(wasted_iterations(history)))
    return min(1.0, useful * sum(seconds) / len(seconds) / wall)


CHECKS: tuple[Callable[[History], Finding | None], ...] = (
    bad_end,
    start_warnings,
    fault_place,
    data_suspects,
    skip_rate,
    scale_sawtooth,
    wasted_work,
    rising_loss,
    *EVENT_CHECKS,
    out_of_memory,
    memory_growth,
    slow_phase,
    injected_faults,
)
_ORDER = list(Severity)


def diagnose(history: History) -> list[Finding]:
    """All findings, the worst first; none if nothing is wrong."""
    found = [check(history) for check in CHECKS]
    return sorted(
        (one for one in found if one is not None),
        key=lambda one: _ORDER.index(one.severity),
    )


def config_lines(change: Mapping[str, Any]) -> str:
    """Lines to put into a config that inherits from the user's.

    Args:
        change (Mapping): From paths, as 'optim_wrapper.loss_scale', to
            values.
    """
    tree: dict[str, Any] = {}
    for path, value in change.items():
        *parents, name = path.split('.')
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = value
    return '\n'.join(f'{name} = {_written(v)}' for name, v in tree.items())


def _written(value: Any) -> str:
    if isinstance(value, dict):
        inner = ', '.join(f'{k}={_written(v)}' for k, v in value.items())
        return f'dict({inner})'
    return repr(value)
