"""``mmstable inspect``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.messages import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = say('help.inspect.description')
    parser.add_argument('checkpoint', metavar='CHECKPOINT')
    parser.add_argument(
        'other',
        metavar='OTHER',
        nargs='?',
        help=say('help.inspect.other'),
    )


def run(args: argparse.Namespace) -> int:
    """Print it, and return the exit code."""
    from mmstable.cli.inspect import inspect

    return inspect(args.checkpoint, args.other)


COMMAND = Command(
    name='inspect',
    help=lambda: say('command.inspect'),
    add_arguments=add_arguments,
    run=run,
    reads_config=False,
)
