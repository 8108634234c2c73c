"""``mmstable probe``: look into a run while it runs, and change it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
        ranks, silent = _ask_all(server.find_sockets())
        keys = ('work_dir', 'log_dir')
        ranks = [r for r in ranks if folder in (r.status[k] for k in keys)]
    else:
        text = N_("'{target}' is neither a process number nor a folder")
        raise cli.usage_error(text, target=target)
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
    if len({one.status['rank'] for one in ranks}) < len(ranks):
        raise cli.usage_error(
            "several runs train in '{folder}': name one of the processes "
            '{pids}',
            folder=target,
            pids=[one.pid for one in ranks],
        )
    return sorted(ranks, key=lambda one: one.status['rank'])


def _ask_process(pid: int) -> _Answers:
    """Ask a process of a run, or those that it has started."""
    import psutil

    from mmstable.probe import server

    ranks, silent = _ask_all(server.find_sockets(pid))
    if ranks or (silent and psutil.pid_exists(pid)):
        return ranks[:1], silent
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return [], []
    started = {one.pid for one in children}
    sockets = server.find_sockets()
    return _ask_all([p for p in sockets if server.socket_pid(p) in started])


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


def _owner(folder: Path) -> str:
    """Which process trains there, by the lock of ``mmstable train``."""
    from mmstable.io.lock import NAME, read_owner

    owner = read_owner(folder / NAME)
    if owner is None or (owner.can_be_asked() and not owner.is_alive()):
        return ''
    text = N_(', though process {pid} on {host} trains there')
    return _(text, pid=owner.pid, host=owner.host)


def _silent(pid: int, error: Exception) -> Exception:
    from mmstable.probe import server

    text = N_(
        'process {pid} does not answer ({error}): it has ended, is stopped, '
        'or a call in C holds the GIL. `py-spy dump --pid {pid}` may show '
        'where; HangWatchdogHook writes stability/watchdog.rankN.txt'
    )
    return server.ProbeError(_(text, pid=pid, error=error))


def probe(args: argparse.Namespace) -> int:
    """Ask a run as the command line says, and return the exit code."""
    all_ranks = find_ranks(args.target)
    known = [one.status['rank'] for one in all_ranks]
    if args.rank not in (None, *known):
        text = N_('no rank {rank} on this machine, there is {known}')
        raise cli.usage_error(text, rank=args.rank, known=known)
    ranks = [
        one for one in all_ranks if args.rank in (None, one.status['rank'])
    ]
    recipe, values = args.recipe, args.values
    if values and recipe not in _USAGE:
        text = N_("'{recipe}' takes no value, got {values}")
        raise cli.usage_error(text, recipe=recipe, values=values)
    if len(values) > 1 or (recipe == 'sql' and not values):
        text = N_("'{recipe}' takes one value: {usage}")
        raise cli.usage_error(text, recipe=recipe, usage=_USAGE[recipe])
    args.value = values[0] if values else None
    args.others = ranks[0].status['world_size'] - len(all_ranks)
    cli.show(*RECIPES[recipe](args, ranks))
    return 0


def _status(args: argparse.Namespace, ranks: Sequence[Rank]) -> Iterator[Any]:
    """Where the run is, and what it trains with."""
    status = ranks[0].status
    yield _position(status)
    for name, lr in status['lr'].items():
        factor = status['lr_factors'].get(name, 1.0)
        share = _(' (x{factor:g} of the schedule)', factor=factor)
        yield _(
            '  {name}: lr {lr:g}{factor}, clip {clip}, loss scale {scale}, '
            '{skipped:bad step|bad steps} skipped',
            name=name,
            lr=lr,
            factor='' if factor == 1.0 else share,
            clip=_cell(status['clip'].get(name)),
            scale=_cell(status['loss_scale'].get(name)),
            skipped=status['skipped'].get(name, 0),
        )
    yield _newest(status)


def _position(status: Mapping[str, Any]) -> str:
    at = _(', at {line}', **status) if status['line'] else ''
    text = N_(
        'rank {rank} (pid {pid}): iteration {iteration} of {max_iters}, in '
        "'{phase}'{at}"
    )
    return _(text, **status, at=at)


def _cell(value: Any) -> str:
    if value is None:
        return '-'
    return f'{value:g}' if isinstance(value, float) else str(value)


def _newest(status: Mapping[str, Any]) -> str:
    if not status['checkpoint']:
        return _('  no checkpoint yet')
    return _('  newest checkpoint: {checkpoint}', **status)


def _ranks(args: argparse.Namespace, ranks: Sequence[Rank]) -> Iterator[Any]:
    for one in ranks:
        yield _position(one.status)
    if args.others:
        text = N_(
            'The other {count:rank|ranks} of {world_size} are on other '
            'machines: ask there.'
        )
        yield _(text, count=args.others, **ranks[0].status)


def _hang(args: argparse.Namespace, ranks: Sequence[Rank]) -> Iterator[Any]:
    yield from _ranks(args, ranks)
    yield ''
    yield from _stacks(args, ranks)


def _stacks(args: argparse.Namespace, ranks: Sequence[Rank]) -> Iterator[Any]:
    """What all threads are calling, the innermost last."""
    late = _rank_that_is_late(ranks)
    found = late.ask('stacks')
    yield _('stacks of rank {rank} (pid {pid}):', **late.status)
    for name, calls in found['threads']:
        yield _('thread {name}:', name=name)
        yield from (f'  {one}' for one in calls)
    for pid, state, function in found['children']:
        facts = {'pid': pid, 'state': state, 'function': function}
        yield _('child process {pid}: {state} {function}', **facts).rstrip()


def _rank_that_is_late(ranks: Sequence[Rank]) -> Rank:
    """The one that others wait for, or the first."""
    from mmstable.dist.failure import RankStatus, behind

    statuses = [
        RankStatus(one['rank'], one['iteration'], one['phase'], 0.0)
        for one in (rank.status for rank in ranks)
    ]
    late = behind(statuses)
    return next((one for one in ranks if one.status['rank'] == late), ranks[0])


def _nan(args: argparse.Namespace, ranks: Sequence[Rank]) -> Iterator[Any]:
    """The newest bad steps, and where to look."""
    steps = ranks[0].ask('steps')
    if not steps:
        yield _('no bad step since this process began to train')
        return
    text = N_(
        'iteration {iteration}: {wrapper}: {fault}, {outcome}, loss '
        'scale {loss_scale:g}, {culprits}'
    )
    yield from (_(text, **one) for one in steps)
    yield _(
        'Between two steps gradients are cleared, so looking at them '
        'finds nothing. See stability/faults/ for the operation a NaN '
        'comes from.'
    )


def _slow(args: argparse.Namespace, ranks: Sequence[Rank]) -> Iterator[Any]:
    from mmstable.probe import commands

    for one in ranks:
        yield _position(one.status)
    seconds, status = ranks[0].ask('speed'), ranks[0].status
    if seconds is not None:
        yield _('{seconds:.4f} s for an iteration', seconds=seconds)
    if not status['probing']:
        yield _(commands.NEEDS_PROBING)
    elif status['traces']:
        yield _answer(ranks[0].ask('sql', query=_SLOWEST))
    else:
        yield _(
            'the times of modules are not measured: set '
            'PROBING_TORCH_PROFILING=on before the run starts; '
            '`mmstable profile CONFIG` tells more'
        )


def _sql(args: argparse.Namespace, ranks: Sequence[Rank]) -> Iterator[Any]:
    yield _answer(ranks[0].ask('sql', query=args.value))


def _answer(columns: Mapping[str, Sequence[Any]]) -> Any:
    rows = zip(*columns.values())
    cells = [[printable(_cell(one), 60) for one in row] for row in rows]
    return cli.table(cells, [printable(name, 60) for name in columns])


def _memory(args: argparse.Namespace, ranks: Sequence[Rank]) -> Iterator[Any]:
    """What each process and its children hold."""
    text = N_(
        'training process {main}, with its {worker_count:child|children} '
        '{tree} (of these {workers}); {left} of {limit} left; {files} open '
        'files'
    )
    for one in ranks:
        found = one.ask('memory')
        for key in ('main', 'tree', 'workers', 'left', 'limit'):
            found[key] = readable(found[key])
        yield _position(one.status)
        yield _(text, **found)


def _change(args: argparse.Namespace, ranks: Sequence[Rank]) -> Iterator[Any]:
    """Show, or set, a number; the rank that is asked tells the others."""
    from mmstable.probe import commands

    if args.value is None:
        yield from _status(args, ranks)
        return
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
    text = N_('rank {rank}: done: {values}')
    if not answer['done']:
        text = _LATER
    elif answer['within']:
        text = N_(
            'all ranks will have it within {within} iterations: {values}'
        )
    done = answer['value'] or {}
    shown = [f'{name}: {one:g}' for name, one in done.items()]
    rank = ranks[0].status['rank']
    yield _(text, target=args.target, rank=rank, values=shown, **answer)


def _checkpoint(
    args: argparse.Namespace, ranks: Sequence[Rank]
) -> Iterator[Any]:
    yield _position(ranks[0].status)
    yield _newest(ranks[0].status)
    yield _(
        '`mmstable probe {target} save` saves one now; `mmstable inspect '
        'FILE` shows what is in it.',
        target=args.target,
    )


def _save(args: argparse.Namespace, ranks: Sequence[Rank]) -> Iterator[Any]:
    """Ask for a checkpoint now, or for one and the end."""
    answer = ranks[0].ask(args.recipe)
    text = N_(
        'asked for after iteration {iteration}; the log says what was '
        'saved, and where'
    )
    fields = {**vars(args), **answer}
    yield _(text if answer['done'] else _LATER, **fields)


def _events(args: argparse.Namespace, ranks: Sequence[Rank]) -> Iterator[Any]:
    return (one['facts'] for one in ranks[0].ask('events'))


RECIPES = {
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
