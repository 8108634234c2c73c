"""``mmstable check-data``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command

# The data has errors.
EXIT_BAD_DATA = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        'Run the data of a config through its pipeline, with its own workers, '
        'and tell what is wrong with it. Exit codes: 0 no errors, '
        f'{EXIT_BAD_DATA} errors in the data, 2 an error in the config, 1 a '
        'worker failed, 130 interrupted; what is known by then is told.'
    )
    parser.add_argument('config', help='config file')
    parser.add_argument(
        '--split',
        choices=['train', 'val', 'test'],
        default='train',
        help='which data; train by default',
    )
    parser.add_argument(
        '--against',
        choices=['train', 'val', 'test'],
        metavar='SPLIT',
        help='find samples that are in this split as well, by their content',
    )
    parser.add_argument(
        '--max',
        type=_positive,
        metavar='N',
        help='look at no more than N samples, spread over all',
    )
    parser.add_argument(
        '--workers',
        type=_count,
        metavar='N',
        help='worker processes; those of the config by default',
    )
    parser.add_argument(
        '--ignore-index',
        type=int,
        metavar='LABEL',
        help='the label of pixels that do not count; that of the config, or '
        '255, by default',
    )
    parser.add_argument(
        '--num-classes',
        type=_positive,
        metavar='N',
        help='how many classes there are; those of the data set by default',
    )
    parser.add_argument(
        '--json', metavar='FILE', help='where to write all that was found'
    )
    parser.add_argument(
        '--write-skip-list',
        metavar='FILE',
        help='where to write the samples with errors, for SkipSamples',
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action='extend',
        metavar='KEY=VALUE',
        help='change values of the config',
    )


def run(args: argparse.Namespace) -> int:
    """Check the data, and return the exit code."""
    from mmstable.cli.check_data import check

    return check(args)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(
            f"it is a number from 1 on, got '{text}'"
        )
    return int(text)


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(
            f"it is a number from 0 on, got '{text}'"
        )
    return int(text)


COMMAND = Command(
    name='check-data',
    help='look through the data of a config before it is trained with',
    add_arguments=add_arguments,
    run=run,
)
