"""``mmstable init``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.messages import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = say('help.init.description')
    parser.add_argument('config', nargs='?', help=say('help.init.config'))
    parser.add_argument(
        '-o', '--output', metavar='OUT.py', help=say('help.init.output')
    )
    parser.add_argument(
        '--force', action='store_true', help=say('help.protect.force')
    )


def run(args: argparse.Namespace) -> int:
    """Write a config, and return the exit code."""
    from mmstable.cli.init import init

    return init(args)


COMMAND = Command(
    name='init',
    help=lambda: say('command.init'),
    add_arguments=add_arguments,
    run=run,
)
