"""``mmstable check``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.cli.parser import add_cfg_options, whole_number
from mmstable.errors import CheckFailed
from mmstable.messages import say

# The worst that was found. Hints alone are 0.
EXIT_WARNINGS = 8
EXIT_ERRORS = CheckFailed.exit_code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = say(
        'help.check.description', warnings=EXIT_WARNINGS, errors=EXIT_ERRORS
    )
    parser.add_argument('config', nargs='?', help=say('help.config'))
    parser.add_argument(
        '--ranks',
        type=whole_number(1),
        metavar='N',
        help=say('help.check.ranks'),
    )
    parser.add_argument(
        '--deep', action='store_true', help=say('help.check.deep')
    )
    parser.add_argument('--fix', metavar='OUT.py', help=say('help.check.fix'))
    parser.add_argument(
        '--format',
        choices=['text', 'json', 'github'],
        default='text',
        help=say('help.check.format'),
    )
    parser.add_argument(
        '--list', action='store_true', help=say('help.check.list')
    )
    add_cfg_options(parser)


def run(args: argparse.Namespace) -> int:
    """Check a config, and return the exit code."""
    from mmstable.cli.check import check

    return check(args)


COMMAND = Command(
    name='check',
    help=lambda: say('command.check'),
    add_arguments=add_arguments,
    run=run,
)
