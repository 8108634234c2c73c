"""``mmstable dist-train``: train on several processes, by torchrun.

The same as tools/dist_train.sh, from a wheel.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mmstable.cli.command as cli
from mmstable.checkpoint.signals import SAVE, ask_to_save, wait_for_training
from mmstable.cli import train

# Signals of a process that has gone wrong inside: 'core dumped'.
_CRASHES = ('SIGSEGV', 'SIGBUS', 'SIGABRT', 'SIGILL', 'SIGFPE')
# What torch says where the processes cannot meet, among much else.
_PORT_TAKEN = 'address already in use'


def dist_train(args: argparse.Namespace) -> int:
    """Be torchrun, and return the exit code of the rank that failed first.

    torchrun itself ends with 1, whatever has happened.
    """
    # Mistakes are reported before there are several processes to do so.
    parser = cli.Parser(prog='mmstable dist-train')
    parser.add((*train.COMMAND.options, *_LAUNCH, *cli.COMMON))
    parser.parse_args([args.config, *args.options])
    cli.check_config_path(args.config)
    # Options of the launcher may stand among those of the processes.
    launcher = cli.Parser()
    launcher.add(_LAUNCH)
    __, args.options = launcher.parse_known_args(args.options, args)
    return _launch(args)


def _launch(args: argparse.Namespace) -> int:
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import (
        ChildFailedError,
    )

    from mmstable.cli.supervise import shell_code

    try:
        with _sigusr1_for_ranks():
            run.main(torchrun_words(args))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code = shell_code(failure.exitcode)
        cli.tell(
            'error: rank {rank} was the first to fail, with exit code '
            '{code}; the reason is above',
            rank=rank,
            code=code,
        )
        name = failure.signal_name()
        if name in _CRASHES:
            cli.tell(
                'it crashed ({signal}): a bug in native code, or a sick '
                'machine; `mmstable doctor` tests this one',
                signal=name,
            )
        return code
    except SignalException as stop:
        name = signal.Signals(stop.sigval).name
        cli.tell('stopped by {signal}', signal=name)
        return 128 + stop.sigval
    except RuntimeError as error:
        if _PORT_TAKEN in str(error).lower():
            raise cli.usage_error(
                'port {port} is taken, perhaps by another training on '
                'this machine: choose another one by --port.',
                port=args.port,
            ) from error
        raise
    return 0


def torchrun_words(args: argparse.Namespace) -> list[str]:
    """The command line of torchrun, for all processes of this machine."""
    lang = [] if args.lang is None else ['--lang', args.lang]
    quiet = ['--quiet'] if args.quiet else []
    return [
        f'--nnodes={args.nnodes}',
        f'--node_rank={args.node_rank}',
        f'--master_addr={args.master_addr}',
        f'--master_port={args.port}',
        f'--nproc_per_node={args.processes}',
        *('-m', 'mmstable', 'train', args.config),
        *('--launcher', 'pytorch', *lang, *quiet, *args.options),
    ]


@contextmanager
def _sigusr1_for_ranks() -> Iterator[None]:
    """Pass on the signal that saves; it would end torchrun."""
    before = signal.signal(SAVE, _pass_on)
    try:
        yield
    finally:
        signal.signal(SAVE, before)


def _pass_on(signum: int, frame: Any) -> None:
    import psutil

    for child in psutil.Process().children():
        ask_to_save(child.pid)


# What torchrun has to know; no options of ``mmstable train``.
_LAUNCH = (
    cli.number(
        '--nnodes',
        1,
        'number of machines; NNODES, or 1, by default',
        env=('NNODES', '1'),
        metavar=None,
    ),
    cli.option(
        '--node-rank',
        'which of them this is, from 0 on; NODE_RANK, or 0, by default',
        env=('NODE_RANK', '0'),
        metavar='RANK',
    ),
    cli.option(
        '--master-addr',
        'the first machine; MASTER_ADDR, or 127.0.0.1, by default',
        env=('MASTER_ADDR', '127.0.0.1'),
        metavar='HOST',
    ),
    cli.number(
        '--port',
        1,
        'where all processes meet; PORT, or 29500, by default',
        env=('PORT', '29500'),
        metavar=None,
    ),
)
COMMAND = cli.Command(
    dist_train,
    (
        cli.option('config', 'config file', metavar='CONFIG'),
        cli.number(
            'processes',
            1,
            'processes on this machine, one for each GPU as a rule',
            metavar='PROCESSES',
        ),
        cli.option(
            'options',
            'options of mmstable train, and those below',
            nargs=argparse.REMAINDER,
            metavar='...',
        ),
        *_LAUNCH,
    ),
    'Train on several processes of this machine, or of several machines: '
    'torchrun starts mmstable train on each. Options of mmstable train '
    'come after N.',
    reads_config=False,
    prepare=wait_for_training,
)
