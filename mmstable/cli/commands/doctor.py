"""``mmstable doctor``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.cli.commands.check import EXIT_ERRORS, EXIT_WARNINGS
from mmstable.messages import say

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
    parser.description = say(
        'help.doctor.description', warnings=EXIT_WARNINGS, errors=EXIT_ERRORS
    )
    parser.add_argument(
        '--only',
        nargs='+',
        choices=TESTS,
        metavar='TEST',
        help=say('help.doctor.only', names=list(TESTS)),
    )
    parser.add_argument(
        '--long', action='store_true', help=say('help.doctor.long')
    )
    parser.add_argument(
        '--work-dir',
        default='.',
        metavar='FOLDER',
        help=say('help.doctor.work_dir'),
    )
    parser.add_argument('--log', metavar='FILE', help=say('help.doctor.log'))
    parser.add_argument(
        '--json', action='store_true', help=say('help.doctor.json')
    )
    parser.add_argument(
        '--watch',
        nargs='?',
        type=_seconds,
        const=1.0,
        metavar='SECONDS',
        help=say('help.doctor.watch'),
    )


def run(args: argparse.Namespace) -> int:
    """Test the machine, and return the exit code."""
    from mmstable.cli.doctor import doctor

    return doctor(args)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(
            say('doctor_text.bad_seconds', text=text)
        )
    return seconds


COMMAND = Command(
    name='doctor',
    help=lambda: say('command.doctor'),
    add_arguments=add_arguments,
    run=run,
    reads_config=False,
)
