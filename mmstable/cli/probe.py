"""``mmstable probe``: look into a run while it runs, and change it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple

import mmstable.cli.command as cli
from mmstable.messages import N_, _, printable, readable

_HOOK = "dict(type='mmstable.LiveProbeHook')"
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
# Recipes that take a value, with an example.
_USAGE = {
    'lr': 'lr 0.001, lr x0.1',
    'clip': 'clip 1.0',
    'sql': 'sql "SELECT * FROM python.mmstable_steps LIMIT 10"',
}
_ONE_VALUE = N_("'{recipe}' takes one value: {usage}")


class Rank(NamedTuple):
    """A process of a run.

    Args:
        pid (int): Its number.
        path (Path): Its socket.
        status (dict): What it says about itself.
    """

    pid: int
    path: Path
    status: dict[str, Any]

    @property
    def rank(self) -> int:
        """Its number in the run."""
        return self.status['rank']

    def ask(self, command: str, **arguments: Any) -> Any:
        """Ask it something; it may have ended meanwhile."""
        from mmstable.probe import server

        try:
            return server.ask(self.path, command, **arguments)
        except OSError as error:
            raise _silent(self.pid, error) from None


# The processes that answer, and those that do not.
_Answers = tuple[list[Rank], list[tuple[int, Exception]]]


def find_ranks(target: str) -> list[Rank]:
    """The processes of a run on this machine, by rank.

    Args:
        target (str): One of them, a process that has started them, or their
            work directory.

    Raises:
        UsageError: If there is no such run, or more than one.
    """
    from mmstable.probe import server

    owner = ''
    if target.isdigit():
        ranks, silent = _ask_process(int(target))
    elif os.path.isdir(target):
        owner, folder = _owner(Path(target)), os.path.realpath(target)
        living, silent = _ask_all(server.find_sockets())
        ranks = [
            rank
            for rank in living
            if folder in (rank.status['work_dir'], rank.status['log_dir'])
        ]
    else:
        raise cli.usage_error(
            "'{target}' is neither a process number nor a folder",
            target=target,
        )
    if not ranks and silent:
        raise _silent(*silent[0])
    if not ranks:
        raise cli.usage_error(
            "'{target}' is no run that can be looked into{owner}. Start it "
            'with `mmstable train CONFIG --probe`, or with {hook} in '
            'custom_hooks; right after the start it takes some seconds',
            target=target,
            owner=owner,
            hook=_HOOK,
        )
    if len({rank.rank for rank in ranks}) < len(ranks):
        raise cli.usage_error(
            "several runs train in '{folder}': name one of the processes "
            '{pids}',
            folder=target,
            pids=[rank.pid for rank in ranks],
        )
    return sorted(ranks, key=lambda one: one.rank)


def _ask_process(pid: int) -> _Answers:
    """Ask a process of a run, or those that it has started."""
    import psutil

    from mmstable.probe import server

    ranks, silent = _ask_all(server.find_sockets(pid))
    if ranks or (silent and psutil.pid_exists(pid)):
        return ranks[:1], silent
    children = [
        path
        for path in server.find_sockets()
        if pid in _parents(server.socket_pid(path))
    ]
    return _ask_all(children)[0], []


def _ask_all(paths: list[Path]) -> _Answers:
    """The processes that answer, and those that do not."""
    from mmstable.probe import server

    ranks: list[Rank] = []
    silent: list[tuple[int, Exception]] = []
    for path in paths:
        pid = server.socket_pid(path)
        try:
            ranks.append(Rank(pid, path, server.ask(path, 'status')))
        except (ConnectionRefusedError, FileNotFoundError):
            # It has ended.
            continue
        except (OSError, server.ProbeError) as error:
            silent.append((pid, error))
    return ranks, silent


def _parents(pid: int) -> list[int]:
    """The processes that have started one, at any distance."""
    import psutil

    try:
        return [one.pid for one in psutil.Process(pid).parents()]
    except psutil.Error:
        return []


def _owner(folder: Path) -> str:
    """Which process trains there, by the lock of ``mmstable train``."""
    from mmstable.io.lock import NAME, read_owner

    owner = read_owner(folder / NAME)
    if owner is None or (owner.can_be_asked() and not owner.is_alive()):
        return ''
    return _(
        ', though process {pid} on {host} trains there',
        pid=owner.pid,
        host=owner.host,
    )


def _silent(pid: int, error: Exception) -> Exception:
    from mmstable.probe import server

    return server.ProbeError(
        _(
            'process {pid} does not answer ({error}): it has ended, is '
            "stopped, or a call in C holds Python's lock. `py-spy dump --pid "
            '{pid}` may tell; HangWatchdogHook writes '
            'stability/watchdog.rankN.txt',
            pid=pid,
            error=error,
        )
    )


def probe(args: argparse.Namespace) -> int:
    """Ask a run as the command line says, and return the exit code."""
    all_ranks = find_ranks(args.target)
    ranks = [one for one in all_ranks if args.rank in (None, one.rank)]
    if not ranks:
        raise cli.usage_error(
            'no rank {rank} on this machine, there is {known}',
            rank=args.rank,
            known=[one.rank for one in all_ranks],
        )
    recipe, values = args.recipe, args.values
    if values and recipe not in _USAGE:
        raise cli.usage_error(
            "'{recipe}' takes no value, got {values}",
            recipe=recipe,
            values=values,
        )
    if len(values) > 1 or (recipe == 'sql' and not values):
        usage = _USAGE[recipe]
        raise cli.usage_error(_ONE_VALUE, recipe=recipe, usage=usage)
    args.value = values[0] if values else None
    args.others = ranks[0].status['world_size'] - len(all_ranks)
    cli.show(*RECIPES[recipe](args, ranks))
    return 0


def _status(args: argparse.Namespace, ranks: Sequence[Rank]) -> list[Any]:
    """Where the run is, and what it trains with."""
    status = ranks[0].status
    return [
        _position(status),
        *(_wrapper(status, name) for name in status['lr']),
        _newest(status),
    ]


def _position(status: Mapping[str, Any]) -> str:
    line = status['line']
    return _(
        'rank {rank} (pid {pid}): iteration {iteration} of {most}, in '
        "'{phase}'{line}",
        rank=status['rank'],
        pid=status['pid'],
        iteration=status['iteration'],
        most=status['max_iters'],
        phase=status['phase'],
        line=_(', at {line}', line=line) if line else '',
    )


def _wrapper(status: Mapping[str, Any], name: str) -> str:
    factor = status['lr_factors'].get(name, 1.0)
    share = _(' (x{factor:g} of the schedule)', factor=factor)
    return _(
        '  {name}: lr {lr:g}{factor}, clip {clip}, loss scale {scale}, '
        '{skipped:bad step|bad steps} skipped',
        name=name,
        lr=status['lr'][name],
        factor='' if factor == 1.0 else share,
        clip=_cell(status['clip'].get(name)),
        scale=_cell(status['loss_scale'].get(name)),
        skipped=status['skipped'].get(name, 0),
    )


def _cell(value: Any) -> str:
    if value is None:
        return '-'
    return f'{value:g}' if isinstance(value, float) else str(value)


def _newest(status: Mapping[str, Any]) -> str:
    if not status['checkpoint']:
        return _('  no checkpoint yet')
    return _('  newest checkpoint: {path}', path=status['checkpoint'])


def _ranks(args: argparse.Namespace, ranks: Sequence[Rank]) -> list[Any]:
    lines = [_position(one.status) for one in ranks]
    if args.others:
        lines.append(
            _(
                'The other {count:rank|ranks} of {world} are on other '
                'machines: ask there.',
                count=args.others,
                world=ranks[0].status['world_size'],
            )
        )
    return lines


def _hang(args: argparse.Namespace, ranks: Sequence[Rank]) -> list[Any]:
    return [*_ranks(args, ranks), '', *_stacks(args, ranks)]


def _stacks(args: argparse.Namespace, ranks: Sequence[Rank]) -> list[Any]:
    """What all threads are calling, the innermost last."""
    late = _rank_that_is_late(ranks)
    found = late.ask('stacks')
    lines = [
        _('stacks of rank {rank} (pid {pid}):', rank=late.rank, pid=late.pid)
    ]
    for name, calls in found['threads']:
        lines += [_('thread {name}:', name=name), *(f'  {c}' for c in calls)]
    for pid, state, function in found['children']:
        facts = dict(pid=pid, state=state, function=function)
        line = _('child process {pid}: {state} {function}', **facts)
        lines.append(line.rstrip())
    return lines


def _rank_that_is_late(ranks: Sequence[Rank]) -> Rank:
    """The one that others wait for, or the first."""
    from mmstable.dist.failure import RankStatus, behind

    statuses = [
        RankStatus(one.rank, one.status['iteration'], one.status['phase'], 0.0)
        for one in ranks
    ]
    late = behind(statuses)
    return next((one for one in ranks if one.rank == late), ranks[0])


def _nan(args: argparse.Namespace, ranks: Sequence[Rank]) -> list[Any]:
    """The newest bad steps, and where to look."""
    steps = ranks[0].ask('steps')
    if not steps:
        return [_('no bad step since this process began to train')]
    lines = [
        _(
            'iteration {iteration}: {wrapper}: {fault}, {outcome}, loss '
            'scale {scale:g}, {culprits}',
            **one,
            scale=one['loss_scale'],
        )
        for one in steps
    ]
    return [
        *lines,
        _(
            'Between two steps gradients are cleared, so looking at them '
            'finds nothing. See stability/faults/ for the operation a NaN '
            'comes from.'
        ),
    ]


def _slow(args: argparse.Namespace, ranks: Sequence[Rank]) -> list[Any]:
    from mmstable.probe import commands

    lines: list[Any] = [_position(one.status) for one in ranks]
    seconds, status = ranks[0].ask('speed'), ranks[0].status
    if seconds is not None:
        lines.append(_('{seconds:.4f} s for an iteration', seconds=seconds))
    if not status['probing']:
        return [*lines, _(commands.NEEDS_PROBING)]
    if not status['traces']:
        return [
            *lines,
            _(
                'the times of modules are not measured: set '
                'PROBING_TORCH_PROFILING=on before the run starts; '
                '`mmstable profile CONFIG` tells more'
            ),
        ]
    return [*lines, _answer(ranks[0].ask('sql', query=_SLOWEST))]


def _sql(args: argparse.Namespace, ranks: Sequence[Rank]) -> list[Any]:
    return [_answer(ranks[0].ask('sql', query=args.value))]


def _answer(columns: Mapping[str, Sequence[Any]]) -> Any:
    rows = [
        [printable(_cell(one), 60) for one in row]
        for row in zip(*columns.values())
    ]
    return cli.table(rows, [printable(name, 60) for name in columns])


def _memory(args: argparse.Namespace, ranks: Sequence[Rank]) -> list[Any]:
    """What each process and its children hold."""
    lines = []
    for one in ranks:
        found = one.ask('memory')
        keys = ('main', 'tree', 'workers', 'left', 'limit')
        line = _(
            'training process {main}, with its {count:child|children} {tree} '
            '(of these {workers}); {left} of {limit} left; {files} open files',
            **{key: readable(found[key]) for key in keys},
            count=found['worker_count'],
            files=found['files'],
        )
        lines += [_position(one.status), line]
    return lines


def _change(args: argparse.Namespace, ranks: Sequence[Rank]) -> list[Any]:
    """Show, or set, a number; the rank that is asked tells the others."""
    from mmstable.probe import commands

    if args.value is None:
        return _status(args, ranks)
    text = args.value.lstrip('x*')
    command, key, refusal = 'set_clip', 'max_norm', commands.BAD_CLIP
    if args.recipe == 'lr':
        key = 'lr' if text == args.value else 'factor'
        command, refusal = 'set_lr', commands.BAD_LR
    try:
        value = float(text)
    except ValueError:
        raise cli.usage_error(refusal, value=text) from None
    answer = ranks[0].ask(command, wrapper=args.wrapper, **{key: value})
    if not answer['done']:
        return [_(_LATER, target=args.target)]
    shown = [f'{name}: {one:g}' for name, one in answer['value'].items()]
    if answer['within']:
        return [
            _(
                'all ranks will have it within {count} iterations: {values}',
                count=answer['within'],
                values=shown,
            )
        ]
    return [_('rank {rank}: done: {values}', rank=ranks[0].rank, values=shown)]


def _checkpoint(args: argparse.Namespace, ranks: Sequence[Rank]) -> list[Any]:
    return [
        _position(ranks[0].status),
        _newest(ranks[0].status),
        _(
            '`mmstable probe {target} save` saves one now; `mmstable inspect '
            'FILE` shows what is in it.',
            target=args.target,
        ),
    ]


def _save(args: argparse.Namespace, ranks: Sequence[Rank]) -> list[Any]:
    """Ask for a checkpoint now, or for one and the end."""
    answer = ranks[0].ask(args.recipe)
    if not answer['done']:
        return [_(_LATER, target=args.target)]
    return [
        _(
            'asked for after iteration {iteration}; the log says what was '
            'saved, and where',
            iteration=answer['iteration'],
        )
    ]


def _events(args: argparse.Namespace, ranks: Sequence[Rank]) -> list[Any]:
    return [one['facts'] for one in ranks[0].ask('events')]


RECIPES: dict[
    str, Callable[[argparse.Namespace, Sequence[Rank]], list[Any]]
] = {
    'status': _status,
    'hang': _hang,
    'stacks': _stacks,
    'nan': _nan,
    'slow': _slow,
    'memory': _memory,
    'lr': _change,
    'clip': _change,
    'checkpoint': _checkpoint,
    'save': _save,
    'stop': _save,
    'ranks': _ranks,
    'events': _events,
    'sql': _sql,
}
COMMAND = cli.Command(
    probe,
    (
        cli.option(
            'target',
            'a process of the run, one that has started it, or its work '
            'directory',
            metavar='PID|WORK_DIR',
        ),
        cli.option(
            'recipe',
            'what to ask: {names}; status by default',
            nargs='?',
            default='status',
            choices=tuple(RECIPES),
            metavar='RECIPE',
        ),
        cli.option(
            'values',
            'for lr: 0.001, or x0.1 for a factor; for clip: the largest '
            'norm; for sql: the query',
            nargs='*',
            metavar='VALUE',
        ),
        cli.number('--rank', 0, 'ask this rank only'),
        cli.option(
            '--wrapper',
            'change this optimizer wrapper only, if there are several',
            metavar='NAME',
        ),
    ),
    'Ask a run on this machine that has LiveProbeHook (`mmstable train '
    'CONFIG --probe`). Recipes: hang: where all ranks are, and all '
    'stacks. nan: the newest bad steps. slow: the speed, and the slowest '
    'modules (needs `--probe probing`). memory: of each rank with its '
    'workers. lr, clip: show, or change until the run ends. checkpoint, '
    'save, stop: the newest one, one now, one and the end. ranks, '
    'events, status, stacks; sql "SELECT ..." (needs `--probe probing`).',
    reads_config=False,
)
