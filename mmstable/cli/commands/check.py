"""``mmstable check``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.cli.parser import add_cfg_options, whole_number
from mmstable.errors import CheckFailed
from mmstable.messages import _

# The worst that was found. Hints alone are 0.
EXIT_WARNINGS = 8
EXIT_ERRORS = CheckFailed.exit_code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = _(
        'Say what would go wrong in a training, before it starts. The config '
        'is run, as in training; nothing is built from it without --deep. '
        'Exit codes: 0 nothing but hints, {warnings} warnings, {errors} '
        'errors, 2 the config cannot be read.',
        warnings=EXIT_WARNINGS,
        errors=EXIT_ERRORS,
    )
    parser.add_argument('config', nargs='?', help=_('config file'))
    parser.add_argument(
        '--ranks',
        type=whole_number(1),
        metavar='N',
        help=_(
            'processes that will train; WORLD_SIZE, or one for each GPU '
            'here, by default'
        ),
    )
    parser.add_argument(
        '--deep',
        action='store_true',
        help=_(
            'also build the model and the optimizer, and do one step with '
            'two samples on the CPU'
        ),
    )
    parser.add_argument(
        '--fix',
        metavar='OUT.py',
        help=_(
            'write a config that inherits from this one, and mends what can '
            'be mended'
        ),
    )
    parser.add_argument(
        '--format',
        choices=['text', 'json', 'github'],
        default='text',
        help=_('how to print it; github is for annotations of its actions'),
    )
    parser.add_argument(
        '--list', action='store_true', help=_('list all rules, and stop')
    )
    add_cfg_options(parser)


def run(args: argparse.Namespace) -> int:
    """Check a config, and return the exit code."""
    from mmstable.cli.check import check

    return check(args)


COMMAND = Command(
    name='check',
    help=lambda: _(
        'say what would go wrong with a config, and how to mend it'
    ),
    add_arguments=add_arguments,
    run=run,
)
