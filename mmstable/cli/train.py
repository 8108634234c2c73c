"""``mmstable train``: from a config file to a trained model."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import torch
from mmengine.config import Config
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from mmstable.cli import config_edits as edits
from mmstable.cli.config_file import check_config_path, load_config
from mmstable.cli.config_mistakes import (
    explain_mistake,
    refuse_impossible_batches,
)
from mmstable.cli.cpu_ranks import prepare_cpu_ranks
from mmstable.cli.resume import settle_checkpoint
from mmstable.cli.resume_command import resume_command
from mmstable.cli.train_args import parse_args
from mmstable.errors import (
    MMStableError,
    StoppedBySignal,
    TrainingDiverged,
    UsageError,
)

# What a shell reports for a program that Ctrl-C has ended.
_EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Train, and return the exit code.

    Args:
        argv (Sequence[str], optional): The arguments; those of the process
            if None. Defaults to None.
    """
    try:
        args = parse_args(argv)
        check_config_path(args.config)
        _choose_gpus(args.gpu_ids, args.launcher)
        cfg = edit_config(load_config(args.config), args)
        refuse_impossible_batches(cfg)
        # For the hook that tells how to go on.
        cfg.resume_command = resume_command(
            _program(), sys.argv[1:] if argv is None else argv, cfg.work_dir
        )
        settle_checkpoint(cfg, args, _say_once)
        _train(cfg)
    except StoppedBySignal as stop:
        _say(f'{stop}; the command to go on is above')
        return stop.exit_code
    except TrainingDiverged as error:
        _say(f'error: diverged; the reason is above, and in {error.file}')
        return error.exit_code
    except MMStableError as error:
        _say(f'error: {error}')
        return error.exit_code
    except KeyboardInterrupt:
        _say('interrupted')
        return _EXIT_INTERRUPTED
    return 0


def edit_config(cfg: Config, args: argparse.Namespace) -> Config:
    """Apply the command line to ``cfg``, which is returned."""
    if args.cfg_options:
        edits.merge_options(cfg, args.cfg_options)
    edits.set_work_dir(cfg, args.work_dir, args.config)
    resume = args.resume
    if args.before_iter is not None and not (
        args.resume_from or args.load_from
    ):
        resume = resume or 'auto'
    edits.set_checkpoint(cfg, resume, args.resume_from, args.load_from)
    edits.set_seed(cfg, args.seed, args.deterministic)
    if args.amp:
        edits.enable_amp(cfg)
    if args.no_validate:
        edits.disable_validation(cfg)
    cfg.launcher = args.launcher
    return cfg


def _train(cfg: Config) -> None:
    try:
        prepare_cpu_ranks(cfg)
        if cfg.get('runner_type') is None:
            runner = Runner.from_cfg(cfg)
        else:
            runner = RUNNERS.build(cfg)
        runner.train()
    except Exception as error:
        mistake = explain_mistake(error)
        if mistake is None:
            raise
        raise UsageError(mistake) from error


def _program() -> list[str]:
    # `mmstable` itself takes the sub-command off before it gets here.
    if sys.argv[0].endswith('.py'):
        return ['python', sys.argv[0]]
    return ['mmstable', 'train']


def _choose_gpus(gpu_ids: list[int] | None, launcher: str) -> None:
    if gpu_ids is None:
        return
    # Read by CUDA when it starts, so this comes before anything uses it.
    os.environ['CUDA_VISIBLE_DEVICES'] = ','.join(map(str, gpu_ids))
    if not torch.cuda.is_available():
        _say(f'--gpu-ids {gpu_ids}: no such GPU here, the option is ignored')
    elif launcher == 'none' and len(gpu_ids) > 1:
        _say('only the first of --gpu-ids is used without --launcher')


def _say_once(text: str) -> None:
    """Let one of many ranks speak, before they are joined."""
    rank = os.environ.get('RANK') or os.environ.get('SLURM_PROCID') or '0'
    if rank == '0':
        _say(text)


def _say(text: str) -> None:
    print(f'mmstable train: {text}', file=sys.stderr, flush=True)
