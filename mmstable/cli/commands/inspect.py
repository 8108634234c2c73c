"""``mmstable inspect``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.messages import _


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = _(
        'Say what is in a checkpoint, or in what two of them differ. Files '
        'are read as data: no code in them is run.'
    )
    parser.add_argument('checkpoint', metavar='CHECKPOINT')
    parser.add_argument(
        'other',
        metavar='OTHER',
        nargs='?',
        help=_('another one, to compare the first with'),
    )


def run(args: argparse.Namespace) -> int:
    """Print it, and return the exit code."""
    from mmstable.cli.inspect import inspect

    return inspect(args.checkpoint, args.other)


COMMAND = Command(
    name='inspect',
    help=lambda: _('say what is in a checkpoint, or in what two differ'),
    add_arguments=add_arguments,
    run=run,
    reads_config=False,
)
