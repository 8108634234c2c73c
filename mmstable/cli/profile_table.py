"""What a profile says, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from mmstable.liveness.profile_text import PHASES, describe_causes, percent
from mmstable.liveness.slow_causes import Cause, Sample
from mmstable.messages import _

# The most rows of hooks and of modules, and the least share of a row.
_MOST, _LEAST = 8, 0.005


def print_profile(
    sample: Sample, causes: Sequence[Cause], synchronizes: bool, trace: Path
) -> None:
    """Print all of it, and the verdict last.

    Args:
        sample (Sample): What was measured.
        causes (Sequence[Cause]): What makes it slow.
        synchronizes (bool): Whether a device was waited for.
        trace (Path): The Chrome trace.
    """
    from rich.console import Console

    # Wide enough for the table where there is no terminal.
    console = Console(soft_wrap=True)
    console.print(_table(sample))
    for line in _lines(sample, causes, synchronizes, trace):
        console.print(line, markup=False, highlight=False)


def as_dict(sample: Sample, causes: Sequence[Cause]) -> dict[str, Any]:
    """The same for programs, in seconds."""
    return {
        **asdict(sample.profile),
        'workers': sample.workers,
        'cores': sample.cores,
        'loading': sample.loading.state,
        'gpu_busy': sample.gpu_busy,
        'ranks': [one._asdict() for one in sample.ranks],
        'causes': [cause._asdict() for cause in causes],
        'verdict': describe_causes(sample, causes),
    }


def _table(sample: Sample) -> object:
    from rich.markup import escape
    from rich.table import Table

    profile = sample.profile
    title = _(
        'an iteration: {milliseconds:.1f} ms, mean of {count}',
        milliseconds=1e3 * profile.seconds,
        count=profile.iterations,
    )
    table = Table(title=title)
    table.add_column(_('part'))
    table.add_column(_('ms'), justify='right')
    table.add_column(_('share'), justify='right')
    parts = (_phases(sample), 0.0), (_hooks(sample), _LEAST)
    for rows, least in (*parts, (_modules(sample), _LEAST)):
        for name, seconds in islice(rows, _MOST):
            share = profile.share(seconds)
            if share >= least:
                cells = f'{1e3 * seconds:.1f}', percent(share)
                table.add_row(escape(name), *cells)
        table.add_section()
    return table


def _phases(sample: Sample) -> Iterator[tuple[str, float]]:
    for name, seconds in sample.profile.phases.items():
        yield _(PHASES[name]), seconds


def _hooks(sample: Sample) -> Iterator[tuple[str, float]]:
    for name, seconds in sample.profile.hooks.items():
        yield _('hook {name}', name=name), seconds


def _modules(sample: Sample) -> Iterator[tuple[str, float]]:
    for name, seconds in sample.profile.modules.items():
        yield _('forward of {name}', name=name), seconds


def _lines(
    sample: Sample, causes: Sequence[Cause], synchronizes: bool, trace: Path
) -> Iterator[str]:
    yield _(
        'num_workers={workers}, {cores:core|cores} for this process.',
        workers=sample.workers,
        cores=sample.cores,
    )
    if sample.gpu_busy is not None:
        share = percent(sample.gpu_busy / 100)
        yield _('{name} {share}', name='GPU', share=share)
    if synchronizes:
        yield _(
            'The device was waited for at every boundary, so that times are '
            'put down to who causes them; without that, iterations are a bit '
            'faster.'
        )
    yield _(
        'Chrome trace: {path} (chrome://tracing or ui.perfetto.dev)',
        path=trace,
    )
    yield from describe_causes(sample, causes)
