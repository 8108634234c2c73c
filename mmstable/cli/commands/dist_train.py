"""``mmstable dist-train``: ``mmstable train`` on several processes."""

from __future__ import annotations

import argparse
import os

from mmstable.cli.command import Command
from mmstable.cli.commands import train
from mmstable.cli.parser import Parser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        'Train on several processes of this machine, or of several machines: '
        'torchrun starts mmstable train on each. Its own options come before '
        'CONFIG, those of mmstable train after N.'
    )
    parser.add_argument('config', metavar='CONFIG', help='config file')
    parser.add_argument(
        'processes',
        metavar='N',
        type=_count,
        help='processes on this machine, one for each GPU as a rule',
    )
    parser.add_argument(
        'options',
        nargs=argparse.REMAINDER,
        metavar='...',
        help='options of mmstable train',
    )
    env = os.environ
    parser.add_argument(
        '--nnodes',
        type=_count,
        default=env.get('NNODES', '1'),
        help='number of machines; NNODES, or 1, by default',
    )
    parser.add_argument(
        '--node-rank',
        default=env.get('NODE_RANK', '0'),
        metavar='RANK',
        help='which of them this is, from 0 on; NODE_RANK, or 0, by default',
    )
    parser.add_argument(
        '--master-addr',
        default=env.get('MASTER_ADDR', '127.0.0.1'),
        metavar='HOST',
        help='the first machine; MASTER_ADDR, or 127.0.0.1, by default',
    )
    parser.add_argument(
        '--port',
        type=_count,
        default=env.get('PORT', '29500'),
        help='where all processes meet; PORT, or 29500, by default',
    )


def run(args: argparse.Namespace) -> int:
    """Become torchrun; its exit code is that of the command."""
    from mmstable.cli.dist_train import dist_train

    # Mistakes are told before there are several processes to tell them.
    parser = Parser(prog='mmstable dist-train')
    train.COMMAND.add_arguments(parser)
    parser.add_argument('--lang')
    parser.parse_args([args.config, *args.options])
    return dist_train(args)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(
            f"a number from 1 on is expected, got '{text}'"
        )
    return int(text)


COMMAND = Command(
    name='dist-train',
    help='train on several processes, by torchrun',
    add_arguments=add_arguments,
    run=run,
    reads_config=False,
)
