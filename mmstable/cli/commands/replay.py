"""``mmstable replay``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command

# The step is finite now.
EXIT_NOT_REPRODUCED = 7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        'Do the training step of a fault again, on the CPU of this machine, '
        'and show where its first bad value comes from. The bundle is read '
        'as data; only the config that you name, or trust, is run. Exit '
        f'codes: 0 it happens again, {EXIT_NOT_REPRODUCED} it does not, 3 '
        'the bundle or checkpoint is damaged or something else, 2 another '
        'mistake, 1 the step cannot be done again.'
    )
    parser.add_argument(
        'bundle', metavar='BUNDLE', help='folder, as stability/faults/iter_N'
    )
    config = parser.add_mutually_exclusive_group()
    config.add_argument(
        '--config', metavar='FILE', help='the config that builds the model'
    )
    config.add_argument(
        '--trust-config',
        action='store_true',
        help='use the config in the bundle, which is code: for bundles of '
        'your own',
    )
    parser.add_argument(
        '--checkpoint',
        metavar='FILE',
        help='use these weights: does it happen there, too?',
    )
    parser.add_argument(
        '--dtype',
        choices=['float32', 'bfloat16', 'float16'],
        help='what to compute in; as in the run by default',
    )
    parser.add_argument(
        '--sample',
        type=_index,
        action='append',
        metavar='I',
        help='use only this sample of the batch, counted from 0; may be '
        'given several times',
    )
    parser.add_argument(
        '--pdb',
        action='store_true',
        help='stop in the debugger where the bad value is born',
    )


def run(args: argparse.Namespace) -> int:
    """Do it again, and return the exit code."""
    from mmstable.cli.replay import replay

    return replay(args)


def _index(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(
            f"it is a number from 0 on, got '{text}'"
        )
    return int(text)


COMMAND = Command(
    name='replay',
    help='do the bad step of a fault again, and show where it began',
    add_arguments=add_arguments,
    run=run,
)
