"""``mmstable protect``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.cli.parser import add_protection_options
from mmstable.messages import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = say('help.protect.description')
    parser.add_argument('config', help=say('help.config'))
    parser.add_argument(
        '-o',
        '--output',
        metavar='OUT.py',
        help=say('help.protect.output'),
    )
    parser.add_argument(
        '--force', action='store_true', help=say('help.protect.force')
    )
    add_protection_options(parser)


def run(args: argparse.Namespace) -> int:
    """Write a protected config, and return the exit code."""
    from mmstable.cli.protect import protect

    return protect(args)


COMMAND = Command(
    name='protect',
    help=lambda: say('command.protect'),
    add_arguments=add_arguments,
    run=run,
)
