"""``mmstable estimate``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.cli.parser import add_cfg_options, whole_number
from mmstable.messages import _

# Training or validation takes more than there is.
EXIT_DOES_NOT_FIT = 11
# No device has less: without a unit, another one than bytes is meant.
_LEAST_BYTES = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = _(
        'Tell how many bytes of tensors training and validation take at '
        'their peak, without a GPU, and what data loading takes in host RAM. '
        'Exit codes: 0 it fits, or no limit was given, {does_not_fit} it '
        'does not fit, 2 an error in the config.',
        does_not_fit=EXIT_DOES_NOT_FIT,
    )
    parser.add_argument('config', help=_('config file'))
    parser.add_argument(
        '--device-memory',
        type=_size,
        metavar='SIZE',
        help=_("memory of the device, as '24GiB'"),
    )
    parser.add_argument(
        '--batch-size',
        type=whole_number(1),
        metavar='N',
        help=_('samples in a training batch; those of the config by default'),
    )
    parser.add_argument(
        '--json', metavar='FILE', help=_('where to write all figures')
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
            _(
                '{number} without a unit is {number} bytes: write '
                "'{number}GiB' or whatever is meant",
                number=text.strip(),
            )
        )
    return size


COMMAND = Command(
    name='estimate',
    help=lambda: _('tell what memory a config takes, and which batch fits'),
    add_arguments=add_arguments,
    run=run,
)
