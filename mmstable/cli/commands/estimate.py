"""``mmstable estimate``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command

# Training or validation takes more than there is.
EXIT_DOES_NOT_FIT = 9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        'Tell how many bytes of tensors training and validation take at '
        'their peak, without a GPU, and what data loading takes in host RAM. '
        'Exit codes: 0 it fits, or no limit was given, '
        f'{EXIT_DOES_NOT_FIT} it does not fit, 2 an error in the config.'
    )
    parser.add_argument('config', help='config file')
    parser.add_argument(
        '--device-memory',
        type=_size,
        metavar='SIZE',
        help="memory of the device, as '24GiB'",
    )
    parser.add_argument(
        '--batch-size',
        type=_positive,
        metavar='N',
        help='samples in a training batch; those of the config by default',
    )
    parser.add_argument(
        '--json', metavar='FILE', help='where to write all figures'
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action='extend',
        metavar='KEY=VALUE',
        help='change values of the config',
    )


def run(args: argparse.Namespace) -> int:
    """Estimate, and return the exit code."""
    from mmstable.cli.estimate import estimate

    return estimate(args)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(
            f"it is a number from 1 on, got '{text}'"
        )
    return int(text)


def _size(text: str) -> int:
    from mmstable.memory.sizes import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


COMMAND = Command(
    name='estimate',
    help='tell what memory a config takes, and which batch fits',
    add_arguments=add_arguments,
    run=run,
)
