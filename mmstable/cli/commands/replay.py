"""``mmstable replay``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.cli.parser import whole_number
from mmstable.messages import _

# The step is finite now.
EXIT_NOT_REPRODUCED = 7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = _(
        'Do the training step of a fault again, on the CPU of this machine, '
        'and show where its first bad value comes from. The bundle is read '
        'as data; only the config that you name, or trust, is run. Exit '
        'codes: 0 it happens again, {not_again} it does not, 3 the bundle or '
        'checkpoint is damaged or something else, 2 another mistake, 1 the '
        'step cannot be done again.',
        not_again=EXIT_NOT_REPRODUCED,
    )
    parser.add_argument(
        'bundle',
        metavar='BUNDLE',
        help=_('folder, as stability/faults/iter_N'),
    )
    config = parser.add_mutually_exclusive_group()
    config.add_argument(
        '--config', metavar='FILE', help=_('the config that builds the model')
    )
    config.add_argument(
        '--trust-config',
        action='store_true',
        help=_(
            'use the config in the bundle, which is code: for bundles of '
            'your own'
        ),
    )
    parser.add_argument(
        '--checkpoint',
        metavar='FILE',
        help=_('use these weights: does it happen there, too?'),
    )
    parser.add_argument(
        '--dtype',
        choices=['float32', 'bfloat16', 'float16'],
        help=_('what to compute in; as in the run by default'),
    )
    parser.add_argument(
        '--sample',
        type=whole_number(0),
        action='append',
        metavar='I',
        help=_(
            'use only this sample of the batch, counted from 0; may be given '
            'several times'
        ),
    )
    parser.add_argument(
        '--pdb',
        action='store_true',
        help=_('stop in the debugger where the bad value is born'),
    )


def run(args: argparse.Namespace) -> int:
    """Do it again, and return the exit code."""
    from mmstable.cli.replay import replay

    return replay(args)


COMMAND = Command(
    name='replay',
    help=lambda: _(
        'do the bad step of a fault again, and show where it began'
    ),
    add_arguments=add_arguments,
    run=run,
)
