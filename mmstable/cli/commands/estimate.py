"""``mmstable estimate``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.cli.parser import add_cfg_options, whole_number
from mmstable.messages import say

# Training or validation takes more than there is.
EXIT_DOES_NOT_FIT = 11
# No device has less: without a unit, another one than bytes is meant.
_LEAST_BYTES = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = say(
        'help.estimate.description', does_not_fit=EXIT_DOES_NOT_FIT
    )
    parser.add_argument('config', help=say('help.config'))
    parser.add_argument(
        '--device-memory',
        type=_size,
        metavar='SIZE',
        help=say('help.estimate.device_memory'),
    )
    parser.add_argument(
        '--batch-size',
        type=whole_number(1),
        metavar='N',
        help=say('help.estimate.batch_size'),
    )
    parser.add_argument(
        '--json', metavar='FILE', help=say('help.estimate.json')
    )
    add_cfg_options(parser)


def run(args: argparse.Namespace) -> int:
    """Estimate, and return the exit code."""
    from mmstable.cli.estimate import estimate

    return estimate(args)


def _size(text: str) -> int:
    from mmstable.memory.sizes import parse_size

    try:
        size = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size < _LEAST_BYTES and not text.strip()[-1].isalpha():
        raise argparse.ArgumentTypeError(
            say('size.no_unit', number=text.strip())
        )
    return size


COMMAND = Command(
    name='estimate',
    help=lambda: say('command.estimate'),
    add_arguments=add_arguments,
    run=run,
)
