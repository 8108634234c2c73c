"""``mmstable dist-train``: ``mmstable train`` on several processes."""

from __future__ import annotations

import argparse
import os

from mmstable.checkpoint.stop_signal import wait_for_training
from mmstable.cli.command import Command
from mmstable.cli.commands import train
from mmstable.cli.parser import Parser, whole_number
from mmstable.messages import _


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = _(
        'Train on several processes of this machine, or of several machines: '
        'torchrun starts mmstable train on each. Options of mmstable train '
        'come after N.'
    )
    parser.add_argument('config', metavar='CONFIG', help=_('config file'))
    parser.add_argument(
        'processes',
        metavar='PROCESSES',
        type=whole_number(1),
        help=_('processes on this machine, one for each GPU as a rule'),
    )
    rest = parser.add_argument(
        'options',
        nargs=argparse.REMAINDER,
        metavar='...',
        help=_('options of mmstable train, and those below'),
    )
    # Some versions of Python would name it among what is missing.
    rest.required = False
    _add_launch_options(parser)


def _add_launch_options(parser: argparse.ArgumentParser) -> None:
    """What torchrun has to know; no option of ``mmstable train``."""
    env = os.environ
    parser.add_argument(
        '--nnodes',
        type=whole_number(1),
        default=env.get('NNODES', '1'),
        help=_('number of machines; NNODES, or 1, by default'),
    )
    parser.add_argument(
        '--node-rank',
        default=env.get('NODE_RANK', '0'),
        metavar='RANK',
        help=_(
            'which of them this is, from 0 on; NODE_RANK, or 0, by default'
        ),
    )
    parser.add_argument(
        '--master-addr',
        default=env.get('MASTER_ADDR', '127.0.0.1'),
        metavar='HOST',
        help=_('the first machine; MASTER_ADDR, or 127.0.0.1, by default'),
    )
    parser.add_argument(
        '--port',
        type=whole_number(1),
        default=env.get('PORT', '29500'),
        help=_('where all processes meet; PORT, or 29500, by default'),
    )


def run(args: argparse.Namespace) -> int:
    """Start torchrun, and return the exit code of its ranks."""
    from mmstable.cli.dist_train import dist_train
    from mmstable.cli.parsers import add_common_options

    # Mistakes are told before there are several processes to tell them.
    parser = Parser(prog='mmstable dist-train')
    train.COMMAND.add_arguments(parser)
    _add_launch_options(parser)
    add_common_options(parser)
    parser.parse_args([args.config, *args.options])
    # The rest is for the processes.
    launcher = Parser()
    _add_launch_options(launcher)
    __, args.options = launcher.parse_known_args(args.options, args)
    return dist_train(args)


COMMAND = Command(
    name='dist-train',
    help=lambda: _('train on several processes, by torchrun'),
    add_arguments=add_arguments,
    run=run,
    reads_config=False,
    prepare=wait_for_training,
)
