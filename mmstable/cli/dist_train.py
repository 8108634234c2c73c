"""``mmstable dist-train``: the same as tools/dist_train.sh, from a wheel."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import (
    ChildFailedError,
)

from mmstable.checkpoint.stop_signal import SAVE, ask_to_save
from mmstable.cli.command import say as say_for
from mmstable.cli.config_file import check_config_path
from mmstable.errors import UsageError
from mmstable.messages import _

# What ends a process that has gone wrong inside: 'core dumped'.
_CRASHES = ('SIGSEGV', 'SIGBUS', 'SIGABRT', 'SIGILL', 'SIGFPE')

# What torch says where the processes cannot meet, among much else.
_PORT_TAKEN = 'address already in use'


def dist_train(args: argparse.Namespace) -> int:
    """Be torchrun, and return the exit code of the rank that failed first.

    torchrun itself ends with 1, whatever has happened.

    Args:
        args (argparse.Namespace): The options, those of ``mmstable train``
            as ``options``.
    """
    check_config_path(args.config)
    try:
        with _sigusr1_for_ranks():
            run.main(torchrun_words(args))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code = _as_a_shell_does(failure.exitcode)
        say_for(
            'dist-train',
            _(
                'error: rank {rank} was the first to fail, with exit code '
                '{code}; the reason is above',
                rank=rank,
                code=code,
            ),
        )
        name = failure.signal_name()
        if name in _CRASHES:
            say_for(
                'dist-train',
                _(
                    'it crashed ({signal}): a bug in native code, or a sick '
                    'machine; `mmstable doctor` tests this one',
                    signal=name,
                ),
            )
        return code
    except SignalException as stop:
        name = signal.Signals(stop.sigval).name
        say_for('dist-train', _('stopped by {signal}', signal=name))
        return 128 + stop.sigval
    except RuntimeError as error:
        if _PORT_TAKEN in str(error).lower():
            raise UsageError(
                _(
                    'port {port} is taken, perhaps by another training on '
                    'this machine: choose another one by --port.',
                    port=args.port,
                )
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


def _pass_on(number: int, frame: Any) -> None:
    for pid in _children():
        ask_to_save(pid)


def _children() -> list[int]:
    tasks = Path('/proc/self/task').glob('*/children')
    return [int(pid) for task in tasks for pid in task.read_text().split()]


def _as_a_shell_does(code: int) -> int:
    return 128 - code if code < 0 else code
