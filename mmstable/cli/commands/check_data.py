"""``mmstable check-data``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.cli.parser import add_cfg_options, whole_number
from mmstable.messages import _

# The data has errors.
EXIT_BAD_DATA = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = _(
        'Run the data of a config through its pipeline, with its own '
        'workers, and tell what is wrong with it. Exit codes: 0 no errors, '
        '{bad} errors in the data, 2 an error in the config, 1 a worker '
        'failed, 130 interrupted; what is known by then is told.',
        bad=EXIT_BAD_DATA,
    )
    parser.add_argument('config', help=_('config file'))
    parser.add_argument(
        '--split',
        choices=['train', 'val', 'test'],
        default='train',
        help=_('which data; train by default'),
    )
    parser.add_argument(
        '--against',
        choices=['train', 'val', 'test'],
        metavar='SPLIT',
        help=_(
            'find samples that are in this split as well, by their content'
        ),
    )
    parser.add_argument(
        '--max',
        type=whole_number(1),
        metavar='N',
        help=_('look at no more than N samples, spread over all'),
    )
    parser.add_argument(
        '--workers',
        type=whole_number(0),
        metavar='N',
        help=_('worker processes; those of the config by default'),
    )
    parser.add_argument(
        '--ignore-index',
        type=int,
        metavar='LABEL',
        help=_(
            'the label of pixels that do not count; that of the config, or '
            '255, by default'
        ),
    )
    parser.add_argument(
        '--num-classes',
        type=whole_number(1),
        metavar='N',
        help=_('how many classes there are; those of the data set by default'),
    )
    parser.add_argument(
        '--json', metavar='FILE', help=_('where to write all that was found')
    )
    parser.add_argument(
        '--write-skip-list',
        metavar='FILE',
        help=_('where to write the samples with errors, for SkipSamples'),
    )
    add_cfg_options(parser)


def run(args: argparse.Namespace) -> int:
    """Check the data, and return the exit code."""
    from mmstable.cli.check_data import check

    return check(args)


COMMAND = Command(
    name='check-data',
    help=lambda: _(
        'look through the data of a config before it is trained with'
    ),
    add_arguments=add_arguments,
    run=run,
)
