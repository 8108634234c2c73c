"""``mmstable profile``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.cli.parser import add_cfg_options, whole_number
from mmstable.messages import say

_ITERS, _WARMUP, _DEPTH = 30, 10, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = say('help.profile.description')
    parser.add_argument('config', help=say('help.config'))
    parser.add_argument(
        '--iters',
        type=whole_number(1),
        default=_ITERS,
        metavar='N',
        help=say('help.profile.iters', default=_ITERS),
    )
    parser.add_argument(
        '--warmup',
        type=whole_number(1),
        default=_WARMUP,
        metavar='N',
        help=say('help.profile.warmup', default=_WARMUP),
    )
    parser.add_argument(
        '--depth',
        type=whole_number(1),
        default=_DEPTH,
        metavar='N',
        help=say('help.profile.depth', default=_DEPTH),
    )
    parser.add_argument(
        '--work-dir',
        metavar='FOLDER',
        help=say('help.profile.work_dir'),
    )
    parser.add_argument(
        '--json', metavar='FILE', help=say('help.profile.json')
    )
    add_cfg_options(parser)
    parser.add_argument(
        '--launcher',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
        default='none',
        help=say('help.train.launcher'),
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
    help=lambda: say('command.profile'),
    add_arguments=add_arguments,
    run=run,
)
