"""``mmstable train``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.add_argument('config', help='config file')
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
        help='folder for logs and checkpoints; '
        'work_dirs/<name of the config> if neither this nor the config says',
    )
    parser.add_argument(
        '--force',
        action='store_true',
        help='train although another run seems to use the work dir',
    )
    parser.add_argument(
        '--amp',
        nargs='?',
        const='auto',
        choices=['auto', 'fp16', 'bf16'],
        help='train in mixed precision with mmstable.SafeAmpOptimWrapper; '
        'in fp16 if neither this nor the config says',
    )
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help='scale the learning rate by the batch size of all ranks over '
        'auto_scale_lr.base_batch_size of the config',
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action='extend',
        metavar='KEY=VALUE',
        help='change values of the config, e.g. '
        'optim_wrapper.clip_grad.max_norm=20',
    )
    parser.add_argument('--seed', type=int, help='seed of all generators')
    parser.add_argument(
        '--deterministic',
        action='store_true',
        help='let torch use deterministic algorithms only',
    )
    parser.add_argument(
        '--no-validate',
        action='store_true',
        help='do not validate during training',
    )

    parser.add_argument(
        '--check',
        action='store_true',
        help='say all that `mmstable check` would say, and train only if '
        'there are no errors; without it the worst is told in a few lines',
    )


def _add_checkpoint_options(parser: argparse.ArgumentParser) -> None:
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='auto|PATH',
        help='resume from a checkpoint; from the newest good one of the work '
        'dir by default',
    )
    start.add_argument(
        '--resume-from',
        metavar='auto|PATH',
        help='the same; a folder stands for its newest good checkpoint',
    )
    start.add_argument(
        '--load-from',
        metavar='PATH',
        help='start a new run with the weights of this checkpoint',
    )
    parser.add_argument(
        '--before-iter',
        type=_iteration,
        metavar='N',
        help='resume from the newest good checkpoint before iteration N',
    )
    parser.add_argument(
        '--override-lr-schedule',
        action='store_true',
        help='use the learning rate, the other numbers of the optimizer and '
        'the schedule of the config, moved to where the run is, not those in '
        'the checkpoint',
    )
    parser.add_argument(
        '--trust-checkpoint',
        action='store_true',
        help='load the named checkpoint even if that runs code in it',
    )
    parser.add_argument(
        '--allow-partial',
        nargs='?',
        type=_share,
        const=0.5,
        default=0.0,
        metavar='SHARE',
        help='resume although up to this share of the weights does not fit '
        'the model; 0.5 without a number',
    )


def _add_machine_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--launcher',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
        default='none',
        help='what started the processes of a distributed run',
    )
    gpus = parser.add_mutually_exclusive_group()
    gpus.add_argument(
        '--gpu-ids', type=_gpu_id, nargs='+', metavar='ID', help='GPUs to use'
    )
    gpus.add_argument(
        '--gpu-id',
        type=_gpu_id,
        nargs=1,
        dest='gpu_ids',
        metavar='ID',
        help='the one GPU to use',
    )
    parser.add_argument(
        '--local_rank', '--local-rank', type=int, help=argparse.SUPPRESS
    )


def _iteration(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(
            f"an iteration is a number from 1 on, got '{text}'"
        )
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(
            f"a share is a number above 0 and up to 1, got '{text}'"
        )
    return share


def _gpu_id(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(
            f"a GPU id is a number from 0 on, got '{text}'"
        )
    return int(text)


COMMAND = Command(
    name='train',
    help='train a model from a config of any OpenMMLab package',
    add_arguments=add_arguments,
    run=run,
)
