"""``mmstable check``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.errors import CheckFailed

# The worst that was found. Hints alone are 0.
EXIT_WARNINGS = 8
EXIT_ERRORS = CheckFailed.exit_code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        'Say what would go wrong in a training, before it starts. The config '
        'is run, as in training; nothing is built from it without --deep. '
        'Exit codes: 0 nothing but hints, '
        f'{EXIT_WARNINGS} warnings, {EXIT_ERRORS} errors, 2 the config '
        'cannot be read.'
    )
    parser.add_argument('config', nargs='?', help='config file')
    parser.add_argument(
        '--ranks',
        type=_positive,
        metavar='N',
        help='processes that will train; WORLD_SIZE, or one for each GPU '
        'here, by default',
    )
    parser.add_argument(
        '--deep',
        action='store_true',
        help='also build the model and the optimizer, and do one step with '
        'two samples on the CPU',
    )
    parser.add_argument(
        '--fix',
        metavar='OUT.py',
        help='write a config that inherits from this one, and mends what can '
        'be mended',
    )
    parser.add_argument(
        '--format',
        choices=['text', 'json', 'github'],
        default='text',
        help='how to print it; github is for annotations of its actions',
    )
    parser.add_argument(
        '--list', action='store_true', help='list all rules, and stop'
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action='extend',
        metavar='KEY=VALUE',
        help='change values of the config',
    )


def run(args: argparse.Namespace) -> int:
    """Check a config, and return the exit code."""
    from mmstable.cli.check import check

    return check(args)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(
            f"it is a number from 1 on, got '{text}'"
        )
    return int(text)


COMMAND = Command(
    name='check',
    help='say what would go wrong with a config, and how to mend it',
    add_arguments=add_arguments,
    run=run,
)
