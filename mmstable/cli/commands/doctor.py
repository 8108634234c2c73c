"""``mmstable doctor``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.cli.commands.check import EXIT_ERRORS, EXIT_WARNINGS
from mmstable.messages import _

# Here, since the tests themselves take long to import.
TESTS = (
    'versions',
    'host',
    'disk',
    'clock',
    'precision',
    'allocation',
    'arithmetic',
    'gpus',
    'xid',
    'processes',
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = _(
        'Say whether this machine is fit to train, and what is wrong with '
        'it. Takes about half a minute. Memory, disk and devices are tried '
        'out; memory of a GPU that others use is left alone. Exit codes: 0 '
        'fit, {warnings} warnings, {errors} errors, 2 a mistake on the '
        'command line.',
        warnings=EXIT_WARNINGS,
        errors=EXIT_ERRORS,
    )
    parser.add_argument(
        '--only',
        nargs='+',
        choices=TESTS,
        metavar='TEST',
        help=_('do only these tests, of {names}', names=list(TESTS)),
    )
    parser.add_argument(
        '--long',
        action='store_true',
        help=_(
            'compute for two minutes on each device, and test half of the RAM'
        ),
    )
    parser.add_argument(
        '--work-dir',
        default='.',
        metavar='FOLDER',
        help=_('folder whose disk to test, the current one by default'),
    )
    parser.add_argument(
        '--log',
        metavar='FILE',
        help=_('read Xids from this file, not from the kernel'),
    )
    parser.add_argument(
        '--json', action='store_true', help=_('print everything as JSON')
    )


def run(args: argparse.Namespace) -> int:
    """Test the machine, and return the exit code."""
    from mmstable.cli.doctor import doctor

    return doctor(args)


COMMAND = Command(
    name='doctor',
    help=lambda: _(
        'test this machine: versions, GPUs, memory, disk, DDP, Xids'
    ),
    add_arguments=add_arguments,
    run=run,
    reads_config=False,
)
