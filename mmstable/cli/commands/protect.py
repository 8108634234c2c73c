"""``mmstable protect``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.cli.parser import add_protection_options
from mmstable.messages import _


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = _(
        'Write a config that inherits from CONFIG, and changes what '
        '`mmstable train` would change: safe classes, and hooks that tell, '
        'explain and save.'
    )
    parser.add_argument('config', help=_('config file'))
    parser.add_argument(
        '-o',
        '--output',
        metavar='OUT.py',
        help=_('where to write it; to stdout by default'),
    )
    parser.add_argument(
        '--force', action='store_true', help=_('overwrite a file that exists')
    )
    add_protection_options(parser)


def run(args: argparse.Namespace) -> int:
    """Write a protected config, and return the exit code."""
    from mmstable.cli.protect import protect

    return protect(args)


COMMAND = Command(
    name='protect',
    help=lambda: _(
        'write a protected version of a config, for any train script'
    ),
    add_arguments=add_arguments,
    run=run,
)
