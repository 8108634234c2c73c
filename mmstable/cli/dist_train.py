"""``mmstable dist-train``: the same as tools/dist_train.sh, from a wheel."""

from __future__ import annotations

import argparse
import os
import sys
from typing import NoReturn

from mmstable.cli.config_file import check_config_path


def dist_train(args: argparse.Namespace) -> NoReturn:
    """Replace this process by torchrun, so that it gets all signals.

    Args:
        args (argparse.Namespace): The options, those of ``mmstable train``
            as ``options``.
    """
    check_config_path(args.config)
    words = torchrun_command(args)
    os.execv(words[0], words)


def torchrun_command(args: argparse.Namespace) -> list[str]:
    """The command line that starts all processes of this machine."""
    lang = [] if args.lang is None else ['--lang', args.lang]
    return [
        # Not `torchrun` itself, which may belong to another Python.
        *(sys.executable, '-m', 'torch.distributed.run'),
        f'--nnodes={args.nnodes}',
        f'--node_rank={args.node_rank}',
        f'--master_addr={args.master_addr}',
        f'--master_port={args.port}',
        f'--nproc_per_node={args.processes}',
        *('-m', 'mmstable', 'train', args.config),
        *('--launcher', 'pytorch', *lang, *args.options),
    ]
