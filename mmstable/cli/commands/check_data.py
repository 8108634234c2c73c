"""``mmstable check-data``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.cli.parser import add_cfg_options, whole_number
from mmstable.messages import say

# The data has errors.
EXIT_BAD_DATA = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = say('help.data.description', bad=EXIT_BAD_DATA)
    parser.add_argument('config', help=say('help.config'))
    parser.add_argument(
        '--split',
        choices=['train', 'val', 'test'],
        default='train',
        help=say('help.data.split'),
    )
    parser.add_argument(
        '--against',
        choices=['train', 'val', 'test'],
        metavar='SPLIT',
        help=say('help.data.against'),
    )
    parser.add_argument(
        '--max',
        type=whole_number(1),
        metavar='N',
        help=say('help.data.max'),
    )
    parser.add_argument(
        '--workers',
        type=whole_number(0),
        metavar='N',
        help=say('help.data.workers'),
    )
    parser.add_argument(
        '--ignore-index',
        type=int,
        metavar='LABEL',
        help=say('help.data.ignore_index'),
    )
    parser.add_argument(
        '--num-classes',
        type=whole_number(1),
        metavar='N',
        help=say('help.data.num_classes'),
    )
    parser.add_argument('--json', metavar='FILE', help=say('help.data.json'))
    parser.add_argument(
        '--write-skip-list',
        metavar='FILE',
        help=say('help.data.skip_list'),
    )
    add_cfg_options(parser)


def run(args: argparse.Namespace) -> int:
    """Check the data, and return the exit code."""
    from mmstable.cli.check_data import check

    return check(args)


COMMAND = Command(
    name='check-data',
    help=lambda: say('command.check_data'),
    add_arguments=add_arguments,
    run=run,
)
