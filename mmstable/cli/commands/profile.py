"""``mmstable profile``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.cli.parser import add_cfg_options, whole_number
from mmstable.cli.texts import LAUNCHER_HELP
from mmstable.messages import _

_ITERS, _WARMUP, _DEPTH = 30, 10, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = _(
        'Train a few iterations in a temporary folder, and tell what they '
        'spend their time on, what makes them slow, and what to change. No '
        'checkpoint is read or written. A Chrome trace is left for '
        'chrome://tracing or ui.perfetto.dev.'
    )
    parser.add_argument('config', help=_('config file'))
    parser.add_argument(
        '--iters',
        type=whole_number(1),
        default=_ITERS,
        metavar='N',
        help=_('iterations to measure (default: {default})', default=_ITERS),
    )
    parser.add_argument(
        '--warmup',
        type=whole_number(1),
        default=_WARMUP,
        metavar='N',
        help=_('iterations before that (default: {default})', default=_WARMUP),
    )
    parser.add_argument(
        '--depth',
        type=whole_number(1),
        default=_DEPTH,
        metavar='N',
        help=_(
            "how deep to look into the model, as 2 for 'backbone.layer3' "
            '(default: {default})',
            default=_DEPTH,
        ),
    )
    parser.add_argument(
        '--work-dir',
        metavar='FOLDER',
        help=_(
            'where the trace goes (default: profile/ below the work_dir of '
            'the config)'
        ),
    )
    parser.add_argument(
        '--json', metavar='FILE', help=_('write the figures to this file, too')
    )
    add_cfg_options(parser)
    parser.add_argument(
        '--launcher',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
        default='none',
        help=_(LAUNCHER_HELP),
    )
    parser.add_argument(
        '--local_rank', '--local-rank', type=int, help=argparse.SUPPRESS
    )


def run(args: argparse.Namespace) -> int:
    """Measure, and return the exit code."""
    from mmstable.cli.profile import profile

    return profile(args)


COMMAND = Command(
    name='profile',
    help=lambda: _('measure where the time of an iteration goes'),
    add_arguments=add_arguments,
    run=run,
)
