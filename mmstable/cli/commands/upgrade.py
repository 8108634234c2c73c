"""``mmstable upgrade``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.messages import say

# Translated, but something has no counterpart.
EXIT_INCOMPLETE = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = say(
        'help.upgrade.description', incomplete=EXIT_INCOMPLETE
    )
    parser.add_argument('config', help=say('help.upgrade.config'))
    parser.add_argument(
        '-o',
        '--output',
        metavar='NEW.py',
        help=say('help.upgrade.output'),
    )


def run(args: argparse.Namespace) -> int:
    """Translate a config, and return the exit code."""
    from mmstable.cli.upgrade import upgrade

    return upgrade(args.config, args.output)


COMMAND = Command(
    name='upgrade',
    help=lambda: say('command.upgrade'),
    add_arguments=add_arguments,
    run=run,
)
