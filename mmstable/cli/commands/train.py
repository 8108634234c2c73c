"""``mmstable train``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.checkpoint.stop_signal import wait_for_training
from mmstable.cli.command import Command
from mmstable.cli.parser import (
    add_cfg_options,
    add_protection_options,
    whole_number,
)
from mmstable.messages import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.add_argument('config', help=say('help.config'))
    parser.add_argument(
        '--as-is', action='store_true', help=say('help.train.as_is')
    )
    add_protection_options(parser)
    _add_run_options(parser)
    _add_checkpoint_options(parser)
    _add_machine_options(parser)


def run(args: argparse.Namespace) -> int:
    """Train, and return the exit code."""
    from mmstable.cli.train import train

    return train(args)


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--work-dir',
        help=say('help.train.work_dir'),
    )
    parser.add_argument(
        '--force',
        action='store_true',
        help=say('help.train.force'),
    )
    parser.add_argument(
        '--amp',
        nargs='?',
        const='auto',
        choices=['auto', 'fp16', 'bf16'],
        help=say('help.train.amp'),
    )
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help=say('help.train.auto_scale_lr'),
    )
    add_cfg_options(parser)
    parser.add_argument(
        '--max-restarts',
        type=whole_number(0),
        default=0,
        metavar='N',
        help=say('help.train.max_restarts'),
    )
    parser.add_argument('--seed', type=int, help=say('help.train.seed'))
    parser.add_argument(
        '--deterministic',
        action='store_true',
        help=say('help.train.deterministic'),
    )
    parser.add_argument(
        '--no-validate',
        action='store_true',
        help=say('help.train.no_validate'),
    )
    parser.add_argument(
        '--probe',
        action='store_true',
        help=say('help.train.probe'),
    )
    parser.add_argument(
        '--check',
        action='store_true',
        help=say('help.train.check'),
    )


def _add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='auto|PATH',
        help=say('help.train.resume'),
    )
    start.add_argument(
        '--resume-from',
        metavar='auto|PATH',
        help=say('help.train.resume_from'),
    )
    start.add_argument(
        '--load-from',
        metavar='PATH',
        help=say('help.train.load_from'),
    )
    parser.add_argument(
        '--before-iter',
        type=whole_number(1),
        metavar='N',
        help=say('help.train.before_iter'),
    )
    parser.add_argument(
        '--override-lr-schedule',
        action='store_true',
        help=say('help.train.override_lr_schedule'),
    )
    parser.add_argument(
        '--trust-checkpoint',
        action='store_true',
        help=say('help.train.trust_checkpoint'),
    )
    parser.add_argument(
        '--allow-partial',
        nargs='?',
        type=_share,
        const=0.5,
        default=0.0,
        metavar='SHARE',
        help=say('help.train.allow_partial'),
    )


def _add_machine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--launcher',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
        default='none',
        help=say('help.train.launcher'),
    )
    gpus = parser.add_mutually_exclusive_group()
    gpus.add_argument(
        '--gpu-ids',
        type=whole_number(0),
        nargs='+',
        metavar='ID',
        help=say('help.train.gpu_ids'),
    )
    gpus.add_argument(
        '--gpu-id',
        type=whole_number(0),
        nargs=1,
        dest='gpu_ids',
        metavar='ID',
        help=say('help.train.gpu_id'),
    )
    parser.add_argument(
        '--local_rank', '--local-rank', type=int, help=argparse.SUPPRESS
    )


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(say('usage.share', text=text))
    return share


COMMAND = Command(
    name='train',
    help=lambda: say('command.train'),
    add_arguments=add_arguments,
    run=run,
    prepare=wait_for_training,
)
