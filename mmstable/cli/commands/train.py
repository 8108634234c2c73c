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
from mmstable.cli.texts import LAUNCHER_HELP
from mmstable.messages import _


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.add_argument('config', help=_('config file'))
    parser.add_argument(
        '--as-is',
        action='store_true',
        help=_(
            'train the config as it is: no class is made safe, no hook added'
        ),
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
        help=_(
            'folder for logs and checkpoints; work_dirs/<name of the config> '
            'if neither this nor the config says'
        ),
    )
    parser.add_argument(
        '--force',
        action='store_true',
        help=_('train although another run seems to use the work dir'),
    )
    parser.add_argument(
        '--amp',
        nargs='?',
        const='auto',
        choices=['auto', 'fp16', 'bf16'],
        help=_(
            'train in mixed precision with mmstable.SafeAmpOptimWrapper; in '
            'fp16 if neither this nor the config says'
        ),
    )
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help=_(
            'scale the learning rate by the batch size of all ranks over '
            'auto_scale_lr.base_batch_size of the config'
        ),
    )
    add_cfg_options(parser)
    parser.add_argument(
        '--max-restarts',
        type=whole_number(0),
        default=0,
        metavar='N',
        help=_(
            'start the run again up to N times after a crash, a hang or a '
            'kill, from its newest good checkpoint'
        ),
    )
    parser.add_argument('--seed', type=int, help=_('seed of all generators'))
    parser.add_argument(
        '--deterministic',
        action='store_true',
        help=_('let torch use deterministic algorithms only'),
    )
    parser.add_argument(
        '--no-validate',
        action='store_true',
        help=_('do not validate during training'),
    )
    parser.add_argument(
        '--probe',
        nargs='?',
        const='socket',
        choices=['socket', 'probing'],
        help=_(
            'let `mmstable probe` look into the run, through a socket that '
            'is open to you only (`socket`, the default); with `--probe '
            'probing` also the package `probing`, which lets every user of '
            'the machine run code as you'
        ),
    )
    parser.add_argument(
        '--check',
        action='store_true',
        help=_(
            'say all that `mmstable check` would say, and train only if '
            'there are no errors; without it the worst is told in a few lines'
        ),
    )


def _add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='auto|PATH',
        help=_(
            'resume from a checkpoint; from the newest good one of the work '
            'dir by default'
        ),
    )
    start.add_argument(
        '--resume-from',
        metavar='auto|PATH',
        help=_('the same; a folder stands for its newest good checkpoint'),
    )
    start.add_argument(
        '--load-from',
        metavar='PATH',
        help=_('start a new run with the weights of this checkpoint'),
    )
    parser.add_argument(
        '--before-iter',
        type=whole_number(1),
        metavar='N',
        help=_('resume from the newest good checkpoint before iteration N'),
    )
    parser.add_argument(
        '--override-lr-schedule',
        action='store_true',
        help=_(
            'use the learning rate, the other numbers of the optimizer and '
            'the schedule of the config, moved to where the run is, not '
            'those in the checkpoint'
        ),
    )
    parser.add_argument(
        '--trust-checkpoint',
        action='store_true',
        help=_('load the named checkpoint even if that runs code in it'),
    )
    parser.add_argument(
        '--allow-partial',
        nargs='?',
        type=_share,
        const=0.5,
        default=0.0,
        metavar='SHARE',
        help=_(
            'resume although up to this share of the weights does not fit '
            'the model; 0.5 without a number'
        ),
    )


def _add_machine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--launcher',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
        default='none',
        help=_(LAUNCHER_HELP),
    )
    gpus = parser.add_mutually_exclusive_group()
    gpus.add_argument(
        '--gpu-ids',
        type=whole_number(0),
        nargs='+',
        metavar='ID',
        help=_('GPUs to use'),
    )
    gpus.add_argument(
        '--gpu-id',
        type=whole_number(0),
        nargs=1,
        dest='gpu_ids',
        metavar='ID',
        help=_('the one GPU to use'),
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
        raise argparse.ArgumentTypeError(
            _(
                "a share is a number above 0 and up to 1, got '{text}'",
                text=text,
            )
        )
    return share


COMMAND = Command(
    name='train',
    help=lambda: _('train a model from a config of any OpenMMLab package'),
    add_arguments=add_arguments,
    run=run,
    prepare=wait_for_training,
)
