"""``mmstable replay``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.cli.parser import whole_number
from mmstable.messages import say

# The step is finite now.
EXIT_NOT_REPRODUCED = 7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = say(
        'help.replay.description', not_again=EXIT_NOT_REPRODUCED
    )
    parser.add_argument(
        'bundle', metavar='BUNDLE', help=say('help.replay.bundle')
    )
    config = parser.add_mutually_exclusive_group()
    config.add_argument(
        '--config', metavar='FILE', help=say('help.replay.config')
    )
    config.add_argument(
        '--trust-config',
        action='store_true',
        help=say('help.replay.trust_config'),
    )
    parser.add_argument(
        '--checkpoint',
        metavar='FILE',
        help=say('help.replay.checkpoint'),
    )
    parser.add_argument(
        '--dtype',
        choices=['float32', 'bfloat16', 'float16'],
        help=say('help.replay.dtype'),
    )
    parser.add_argument(
        '--sample',
        type=whole_number(0),
        action='append',
        metavar='I',
        help=say('help.replay.sample'),
    )
    parser.add_argument(
        '--pdb',
        action='store_true',
        help=say('help.replay.pdb'),
    )


def run(args: argparse.Namespace) -> int:
    """Do it again, and return the exit code."""
    from mmstable.cli.replay import replay

    return replay(args)


COMMAND = Command(
    name='replay',
    help=lambda: say('command.replay'),
    add_arguments=add_arguments,
    run=run,
)
