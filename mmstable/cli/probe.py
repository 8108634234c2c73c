"""``mmstable probe``: ask a run something, or change it, while it runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from mmstable.cli import probe_text as text
from mmstable.cli.probe_target import Rank, find_ranks
from mmstable.errors import UsageError
from mmstable.liveness.peers import RankStatus, behind
from mmstable.liveness.probe.commands import BAD_CLIP, BAD_LR, NEEDS_PROBING
from mmstable.messages import N_, _

# How long modules take on average, the slowest first.
_SLOWEST = """
SELECT module, stage, COUNT(*) AS count, AVG(duration) AS mean_seconds,
SUM(duration) AS total_seconds FROM python.torch_trace
WHERE stage LIKE 'post%' GROUP BY module, stage
ORDER BY total_seconds DESC LIMIT 10
"""
_LATER = N_(
    'the run does not come to the end of a step; it is done as soon as it '
    'does. `mmstable probe {target} hang` shows where it is'
)
_ONE_VALUE = N_("'{recipe}' takes one value: {usage}")


class Question:
    """What the user wants to know.

    Args:
        args (Namespace): The command line.
        ranks (Sequence[Rank]): The processes of the run on this machine.
    """

    def __init__(
        self, args: argparse.Namespace, ranks: Sequence[Rank]
    ) -> None:
        self.target: str = args.target
        self.recipe: str = args.recipe
        self.wrapper: str | None = args.wrapper
        self.ranks = [one for one in ranks if args.rank in (None, one.rank)]
        self.all_ranks = ranks
        # A change has to reach one of them only.
        self.rank = self.ranks[0]
        self._values: list[str] = args.values

    def no_value(self) -> None:
        """Refuse values."""
        if self._values:
            raise UsageError(
                _(
                    "'{recipe}' takes no value, got {values}",
                    recipe=self.recipe,
                    values=self._values,
                )
            )

    def value(self, usage: str) -> str | None:
        """The value, if there is one."""
        if len(self._values) > 1:
            raise UsageError(_(_ONE_VALUE, recipe=self.recipe, usage=usage))
        return self._values[0] if self._values else None


def probe(args: argparse.Namespace) -> int:
    """Ask a run as the command line says, and return the exit code."""
    ranks = find_ranks(args.target)
    if args.rank is not None:
        known = [one.rank for one in ranks]
        if args.rank not in known:
            raise UsageError(
                _(
                    'no rank {rank} on this machine, there is {known}',
                    rank=args.rank,
                    known=known,
                )
            )
    text.show(_RECIPES[args.recipe](Question(args, ranks)))
    return 0


def _status(question: Question) -> list[str]:
    question.no_value()
    return text.describe_run(question.rank.status)


def _ranks(question: Question) -> list[str]:
    question.no_value()
    lines = [text.describe_position(one.status) for one in question.ranks]
    world = question.rank.status['world_size']
    others = world - len(question.all_ranks)
    if others:
        lines.append(
            _(
                'The other {count:rank|ranks} of {world} are on other '
                'machines: ask there.',
                count=others,
                world=world,
            )
        )
    return lines


def _hang(question: Question) -> list[str]:
    return [*_ranks(question), '', *_stacks(question)]


def _stacks(question: Question) -> list[str]:
    question.no_value()
    late = _rank_that_is_late(question.ranks)
    lines = text.describe_stacks(late.ask('stacks'))
    return [
        _('stacks of rank {rank} (pid {pid}):', rank=late.rank, pid=late.pid),
        *lines,
    ]


def _rank_that_is_late(ranks: Sequence[Rank]) -> Rank:
    """The one that others wait for, or the first."""
    late = behind(
        [
            RankStatus(
                one.rank, one.status['iteration'], one.status['phase'], 0.0
            )
            for one in ranks
        ]
    )
    return next((one for one in ranks if one.rank == late), ranks[0])


def _nan(question: Question) -> list[str]:
    question.no_value()
    return text.describe_bad_steps(question.rank.ask('steps'))


def _slow(question: Question) -> list[str]:
    question.no_value()
    lines = [text.describe_position(one.status) for one in question.ranks]
    lines += text.describe_speed(question.rank.ask('speed'))
    if not question.rank.status['probing']:
        return [*lines, _(NEEDS_PROBING)]
    if not question.rank.status['traces']:
        return [
            *lines,
            _(
                'the times of modules are not measured: set '
                'trace_modules=True of LiveProbeHook, or '
                'PROBING_TORCH_PROFILING=on, before the run starts; '
                '`mmstable profile CONFIG` tells more'
            ),
        ]
    found = question.rank.ask('sql', query=_SLOWEST)
    return [*lines, *text.describe_table(found)]


def _memory(question: Question) -> list[str]:
    question.no_value()
    return [
        line
        for one in question.ranks
        for line in [
            text.describe_position(one.status),
            text.describe_memory(one.ask('memory')),
        ]
    ]


def _lr(question: Question) -> list[str]:
    value = question.value('lr 0.001, lr x0.1')
    if value is None:
        return text.describe_run(question.rank.status)
    key = 'factor' if value[:1] in ('x', '*') else 'lr'
    number = _number(value.lstrip('x*'), 'probe.bad_lr')
    return _changed(question, 'set_lr', **{key: number})


def _clip(question: Question) -> list[str]:
    value = question.value('clip 1.0')
    if value is None:
        return text.describe_run(question.rank.status)
    number = _number(value, 'probe.bad_clip')
    return _changed(question, 'set_clip', max_norm=number)


def _checkpoint(question: Question) -> list[str]:
    question.no_value()
    return [
        text.describe_position(question.rank.status),
        text.describe_checkpoint(question.rank.status),
        _(
            '`mmstable probe {target} save` saves one now; `mmstable inspect '
            'FILE` shows what is in it.',
            target=question.target,
        ),
    ]


def _save(question: Question) -> list[str]:
    question.no_value()
    answer = question.rank.ask(question.recipe)
    if not answer['done']:
        return [_(_LATER, target=question.target)]
    return [
        _(
            'asked for after iteration {iteration}; the log says what was '
            'saved, and where',
            iteration=answer['iteration'],
        )
    ]


def _events(question: Question) -> list[str]:
    question.no_value()
    return [one['facts'] for one in question.rank.ask('events')]


def _sql(question: Question) -> list[str]:
    usage = 'sql "SELECT * FROM python.mmstable_steps LIMIT 10"'
    query = question.value(usage)
    if query is None:
        raise UsageError(_(_ONE_VALUE, recipe='sql', usage=usage))
    return text.describe_table(question.rank.ask('sql', query=query))


def _changed(question: Question, command: str, **values: Any) -> list[str]:
    answer = question.rank.ask(command, wrapper=question.wrapper, **values)
    if not answer['done']:
        return [_(_LATER, target=question.target)]
    shown = [f'{name}: {one:g}' for name, one in answer['value'].items()]
    if answer['within']:
        return [
            _(
                'all ranks will have it within {count} iterations: {values}',
                count=answer['within'],
                values=shown,
            )
        ]
    return [
        _('rank {rank}: done: {values}', rank=question.rank.rank, values=shown)
    ]


def _number(value: str, key: str) -> float:
    try:
        return float(value)
    except ValueError:
        if key == 'probe.bad_lr':
            raise UsageError(_(BAD_LR)) from None
        raise UsageError(_(BAD_CLIP, value=value)) from None


_RECIPES: dict[str, Callable[[Question], list[str]]] = {
    'status': _status,
    'hang': _hang,
    'stacks': _stacks,
    'nan': _nan,
    'slow': _slow,
    'memory': _memory,
    'lr': _lr,
    'clip': _clip,
    'checkpoint': _checkpoint,
    'save': _save,
    'stop': _save,
    'ranks': _ranks,
    'events': _events,
    'sql': _sql,
}
