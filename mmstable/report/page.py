"""The report of a run: one HTML file with everything in it.

It has charts, a timeline with an entry for each event, a few figures that sum
up the run, and the diagnosis. It is also written when a run dies.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mmstable.errors import MMStableError
from mmstable.finding import Finding, Severity
from mmstable.io.files import replace_text
from mmstable.io.schema import finite, mapping, shorten
from mmstable.messages import LANGUAGES, _, language, speaking
from mmstable.messages.secrets import shell_command
from mmstable.report.diagnosis import (
    config_lines,
    diagnose,
    goodput,
    main_loss,
    state_of,
    wasted_iterations,
)
from mmstable.report.history import (
    LANES,
    History,
    Series,
    Start,
    as_lists,
    decimate,
    find_event_files,
    iteration_seconds,
    log_folder,
    ordered,
    read_history,
    rounded,
    text_of,
)
from mmstable.version import __version__

_ASSETS = Path(__file__).parent / 'assets'


@cache
def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding='utf-8')


# Labels of the page, by their names in its script.
PAGE: dict[str, str] = json.loads(_asset('texts.json'))['texts']
_MOST_LINES = 8
# Columns of the heat map.
_CELLS = 160
# The most marks in a chart.
_MOST_MARKS = 1500

Line = dict[str, Any]


def draw_charts(history: History) -> dict[str, list[Line]]:
    """The lines of all charts, by the name of the chart."""
    return {
        'loss': _losses(history),
        'scale': _scales(history),
        'norm': _norms(history),
        'memory': _plain(history, 'memory'),
        'time': _times(history),
        'lr': _rates(history),
        'validation': _plain(history, 'validation'),
    }


def _line(label: str, series: Series, **style: Any) -> Line:
    return {'label': label, **as_lists(series), **style}


def _plain(history: History, chart: str) -> list[Line]:
    labels = history.labels(chart)[:_MOST_LINES]
    return [_line(label, history.line(chart, label)) for label in labels]


def _losses(history: History) -> list[Line]:
    """As mmengine logs them; as they were sampled where it does not."""
    logged, sampled = history.labels('mean_loss'), history.labels('loss')
    chart = 'mean_loss' if logged else 'loss'
    labels = logged or sampled
    # The whole first, the terms behind it.
    labels = sorted(labels, key=lambda name: (name != 'loss', name))
    lines = [_line(name, history.line(chart, name)) for name in labels]
    if len(lines) == 2 and lines[0]['y'] == lines[1]['y']:
        # A single term is the whole.
        del lines[1]
    return lines[:_MOST_LINES]


def _scales(history: History) -> list[Line]:
    lines = []
    for name in history.scaled[:_MOST_LINES]:
        series = history.joined(
            [one.scales.get(name) for one in history.starts]
        )
        if len(series):
            series.add(history.iterations, series.y[-1])
        lines.append(_line(name, series, stepped=True))
    return lines


def _norms(history: History) -> list[Line]:
    lines = _richer(history, 'grad_norm', 'mean_norm')
    for line in lines:
        line['dashed'] = line['label'].endswith('clipped')
    return lines + _limits(history)


def _richer(history: History, first: str, second: str) -> list[Line]:
    """The chart with more points: a short run has few samples."""
    return max(
        (_plain(history, chart) for chart in (first, second)),
        key=lambda lines: max((len(line['x']) for line in lines), default=0),
    )


def _limits(history: History) -> list[Line]:
    """The largest norm that the wrappers let through."""
    last = history.starts[-1].header
    limits = [
        finite(mapping(one.clip_grad).get('max_norm'))
        for one in last.wrappers.values()
    ]
    held = {limit for limit in limits if limit is not None}
    ends = [float(history.starts[0].header.iteration), history.iterations]
    return [
        {'label': 'limit', 'x': ends, 'y': [limit, limit], 'dotted': True}
        for limit in sorted(held)
    ]


def _times(history: History) -> list[Line]:
    phases = history.labels('phases')
    if phases:
        return _plain(history, 'phases')
    lines = _plain(history, 'mean_time')
    return lines or _plain(history, 'time')


def _rates(history: History) -> list[Line]:
    return _richer(history, 'lr', 'mean_lr') + _factors(history)


def _factors(history: History) -> list[Line]:
    series = Series()
    for one in history.incidents('intervention'):
        factor = finite(one.get('lr_factor'))
        if factor is not None:
            series.add(one['iteration'], factor)
    if all(factor == 1.0 for factor in series.y):
        return []
    series.add(history.iterations, series.y[-1])
    return [_line('lr_factor', series, stepped=True, own_axis=True)]


def skip_marks(history: History) -> list[list[float]]:
    """Where steps were bad, and whether they were skipped."""
    found = Series()
    for start in history.starts:
        found.x.extend(start.skipped.x)
        found.y.extend(start.skipped.y)
    x, y = ordered(found)
    if len(x) > _MOST_MARKS:
        index = np.linspace(0, len(x) - 1, _MOST_MARKS).astype(int)
        x, y = x[index], y[index]
    return [x.tolist(), y.tolist()]


def heat_map(history: History) -> dict[str, Any] | None:
    """Norms by module: one row each, the same columns for all."""
    labels = history.labels('modules')[:32]
    if not labels:
        return None
    lines = {name: ordered(history.line('modules', name)) for name in labels}
    columns = np.unique(np.concatenate([x for x, __ in lines.values()]))
    columns = decimate(columns, columns, _CELLS // 4)[0]
    rows = []
    for x, y in lines.values():
        values = dict(zip(x.tolist(), y.tolist()))
        rows.append(rounded(map(values.get, columns.tolist())))
    return {'labels': labels, 'x': columns.tolist(), 'rows': rows}


# The most entries on a page; others are only counted.
_MOST = 2500


def tell_story(history: History) -> dict[str, Any]:
    """Everything that is drawn in the timeline, by time."""
    starts = [*history.earlier, *history.starts]
    found = [one for start in starts for one in _of_start(start)]
    for start in history.other_ranks:
        found += [_entry(one) for one in start.incidents.all()]
    found += [_of_checkpoint(path, one) for path, one in history.checkpoints]
    found = _joined(sorted(found, key=lambda one: one['t']))
    counts = sum(sum(one.counts.values()) for one in starts)
    shown = _thinned(found)
    return {
        'entries': shown,
        'left_out': len(found) - len(shown),
        'all': counts,
    }


def _of_start(start: Start) -> list[dict[str, Any]]:
    header = start.header
    kind = 'start' if header.iteration == 0 else 'resume'
    if header.restarts:
        kind = 'restart'
    data: dict[str, Any] = {'host': header.host, 'pid': header.pid}
    if header.restarted_after:
        data['reason'] = header.restarted_after
    first = {
        'kind': kind,
        'lane': 'runs',
        'it': header.iteration,
        't': header.time,
        'data': data,
    }
    last = {
        'kind': 'end',
        'lane': 'runs',
        'it': start.last_iteration,
        't': start.last_time,
        'word': state_of(start),
        'data': {'traceback': text_of(start.end or {}, 'traceback')},
    }
    return [first, *map(_entry, start.incidents.all()), last]


def _entry(record: dict[str, Any]) -> dict[str, Any]:
    """One event; its name and place are what this page knows of it."""
    kind = record['event']
    data = {
        key: value
        for key, value in record.items()
        if key not in ('event', 'iteration', 'time')
        and value not in (None, '', [], {})
    }
    entry = {
        'kind': kind,
        'lane': LANES.get(kind, 'other'),
        'it': record['iteration'],
        't': finite(record.get('time')) or 0.0,
        'data': data,
    }
    if kind == 'fault_explained' and text_of(record, 'bundle'):
        entry['replay'] = replay_command(text_of(record, 'bundle'))
    return entry


def replay_command(bundle: str) -> str:
    """What to type to see a fault again."""
    return shell_command(['mmstable', 'replay', bundle, '--trust-config'])


def _of_checkpoint(path: Any, manifest: Any) -> dict[str, Any]:
    return {
        'kind': 'checkpoint',
        'lane': 'checkpoints',
        'it': manifest.iteration,
        't': manifest.time,
        'word': manifest.kind,
        'data': {'file': str(path), 'finite': manifest.finite},
    }


def _joined(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A bad step and what was found out about it are one entry."""
    steps: dict[Any, dict[str, Any]] = {}
    rest = []
    # By time, because an iteration can be done again.
    for one in entries:
        key = one['it'], str(one['data'].get('fault'))
        step = steps.get(key)
        if one['kind'] == 'fault_explained' and step is not None:
            step['cause'] = one['data']
            step['replay'] = one.get('replay')
            continue
        if one['kind'] == 'step_fault':
            steps[key] = one
        rest.append(one)
    return rest


def _thinned(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most so many; those with a cause, and the runs, stay."""
    if len(entries) <= _MOST:
        return entries
    kept = [one for one in entries if _matters(one)][:_MOST]
    others = [one for one in entries if not _matters(one)]
    room = max(1, _MOST - len(kept))
    stride = max(1, -(-len(others) // room))
    return sorted(kept + others[::stride], key=lambda one: one['t'])


def _matters(entry: dict[str, Any]) -> bool:
    return 'cause' in entry or entry['lane'] in ('runs', 'actions')


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
        wasted (int): Iterations whose result was lost.
        starts (int): How often it was started.
        last_loss (float, optional): The newest loss.
        best_loss (float, optional): The lowest one.
        loss_scale (float, optional): The newest loss scale.
        seconds (float, optional): Of an iteration.
        duration (float): Seconds in which it ran.
        goodput (float, optional): Useful training time over wall time.
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
    goodput: float | None


def figures_of(history: History) -> Figures:
    """The figures of a history."""
    last = history.starts[-1]
    losses = [y for y in main_loss(history).y if math.isfinite(y)]
    scales = [one.y[-1] for one in last.scales.values() if len(one)]
    rollbacks = history.incidents('intervention', action='rollback')
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
        goodput=goodput(history),
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
    # The worst is the first.
    if not findings or findings[0].severity is Severity.HINT:
        return 'good'
    return findings[0].severity.value


def page_data(histories: Sequence[History]) -> dict[str, Any]:
    """All that a page shows, in plain types."""
    data = {
        'version': __version__,
        'generated': time.time(),
        'language': language(),
        'languages': list(LANGUAGES),
        'texts': {lang: _labels(lang) for lang in LANGUAGES},
        'works': [_work(history) for history in histories],
    }
    return _strict(data)


def write_page(histories: Sequence[History]) -> str:
    """The page as text."""
    style = _asset('uPlot.min.css') + _asset('report.css')
    script = _script()
    parts = {
        'POLICY': _policy(style, script),
        'LICENCE': _asset('LICENSE.uPlot.txt').replace('--', ''),
        'STYLE': style,
        'SCRIPT': script,
        'DATA': as_script(page_data(histories)),
    }
    # In one pass, so that no part can name another one.
    pieces = _asset('report.html').split('%%')
    return ''.join(
        parts[piece] if index % 2 else piece
        for index, piece in enumerate(pieces)
    )


def as_script(data: Any) -> str:
    """JSON that can neither end the element it is in nor begin another."""
    text = json.dumps(data, ensure_ascii=True, separators=(',', ':'))
    for character in '<>&':
        text = text.replace(character, f'\\u{ord(character):04x}')
    return text


def _policy(style: str, script: str) -> str:
    """Only what is in the file may run, and nothing may leave it."""
    rules = [
        "default-src 'none'",
        f"style-src '{_digest(style)}'",
        f"script-src '{_digest(script)}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return '; '.join(rules)


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return 'sha256-' + base64.b64encode(digest).decode()


@cache
def _script() -> str:
    """Ours in the order of their names, and nothing of it global."""
    ours = sorted((_ASSETS / 'js').glob('*.js'))
    text = '\n'.join(path.read_text(encoding='utf-8') for path in ours)
    return f'{_asset("uPlot.iife.min.js")}\n(() => {{\n{text}\n}})();'


def _labels(lang: str) -> dict[str, str]:
    with speaking(lang):
        return {name: _(text) for name, text in PAGE.items()}


def _work(history: History) -> dict[str, Any]:
    return {
        'name': history.path.resolve().name or str(history.path),
        'path': str(history.path),
        'figures': figures_of(history)._asdict(),
        'words': {lang: _words(history, lang) for lang in LANGUAGES},
        'charts': draw_charts(history),
        'skips': skip_marks(history),
        'heat': heat_map(history),
        'story': tell_story(history),
        'starts': [
            [one.header.time, one.last_time, one.header.iteration]
            for one in [*history.earlier, *history.starts]
        ],
        'setup': _setup(history),
    }


def _words(history: History, lang: str) -> dict[str, Any]:
    """What is said, in one language."""
    with speaking(lang):
        findings = diagnose(history)
        return {
            'headline': headline(history, findings),
            'worst': worst(findings),
            'notes': notes_of(history),
            'findings': [
                {**one.as_dict(), 'config': config_lines(one.change)}
                for one in findings
            ],
        }


def _setup(history: History) -> dict[str, Any]:
    header = history.starts[-1].header
    wrappers = {
        name: f'{one.type.rpartition(".")[2]} · '
        f'{one.optimizer.rpartition(".")[2]} · {one.dtype or "float32"}'
        for name, one in header.wrappers.items()
    }
    clips = [one.clip for one in header.wrappers.values() if one.clip]
    return shorten(
        {
            'date': time.strftime(
                '%Y-%m-%d %H:%M:%S', time.localtime(header.time)
            ),
            'host': header.host,
            'command': header.resume_command,
            'changes': ' '.join(one.strip() for one in header.changes),
            'device': header.device_name or header.device,
            'ranks': header.world_size,
            'versions': ', '.join(
                f'{name} {version}'
                for name, version in header.versions.items()
            ),
            'seed': header.seed,
            'wrapper': '; '.join(wrappers.values()),
            'clip': '; '.join(clips),
            'config_sha': header.config_sha256[:12],
        }
    )


def _strict(value: Any) -> Any:
    """Without the numbers that JSON does not have."""
    if isinstance(value, dict):
        return {str(key): _strict(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


REPORT_NAME = 'stability_report.html'
# Bytes of all event files and log lines of a work directory, and their
# number, that take less than a second on any machine.
_LARGEST = 4 << 20
_MOST_FILES = 40


def report_folder(path: Path) -> Path:
    """Where the page of a folder, or of an event file, goes."""
    return path if path.is_dir() else log_folder(path)


def write_report(histories: Sequence[History], path: Path) -> None:
    """Write the page of one or several work directories.

    Args:
        histories (Sequence[History]): The work directories.
        path (Path): The file, which is replaced as a whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, write_page(histories), encoding='utf-8')


def write_if_quick(
    work_dir: str | os.PathLike[str], seconds: float = 2.0
) -> tuple[Path, str] | None:
    """Write the page of a work directory, unless that would take long.

    Args:
        work_dir (str or PathLike): The work directory.
        seconds (float): The most time that reading may take. Defaults to
            2.0.

    Returns:
        tuple, optional: The file, and the diagnosis in one sentence; None if
        there is nothing to show, or too much for so little time, or no room
        on the disk.
    """
    folder, start = Path(work_dir), time.monotonic()
    try:
        if not _is_small(find_event_files(folder)):
            return None
        history = read_history(folder)
        if time.monotonic() - start > seconds:
            return None
        write_report([history], folder / REPORT_NAME)
    except (MMStableError, OSError):
        return None
    text, share = headline(history, diagnose(history)), goodput(history)
    if share is not None:
        text += ' ' + _('Goodput {share:.0%}.', share=share)
    return folder / REPORT_NAME, text


def _is_small(files: Sequence[Path]) -> bool:
    if len(files) > _MOST_FILES:
        return False
    logs = [log_folder(one) / 'vis_data' / 'scalars.json' for one in files]
    sizes = [one.stat().st_size for one in [*files, *logs] if one.is_file()]
    return sum(sizes) <= _LARGEST
