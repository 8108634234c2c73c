"""``mmstable train``: from a config file to a trained model."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Callable

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
from mmstable.cli.legacy_config import modernize
from mmstable.cli.resume import settle_checkpoint
from mmstable.cli.resume_command import launch_command, resume_command
from mmstable.cli.train_args import parse_args
from mmstable.distributed.join_ranks import ReportedByRankZero, join_ranks
from mmstable.distributed.launchers import rank_of
from mmstable.errors import (
    MMStableError,
    StoppedBySignal,
    TrainingDiverged,
    UsageError,
)
from mmstable.messages.printable import printable

# What a shell reports for a program that Ctrl-C has ended.
_EXIT_INTERRUPTED = 130
_LONGEST_LINE = 4000


def main(argv: Sequence[str] | None = None) -> int:
    """Train, and return the exit code.

    Args:
        argv (Sequence[str], optional): The arguments; those of the process
            if None. Defaults to None.
    """
    say_once = _say
    try:
        args = parse_args(argv)
        if rank_of(args.launcher) != 0:
            say_once = _say_nothing
        check_config_path(args.config)
        _choose_gpus(args.gpu_ids, args.launcher)
        cfg = edit_config(load_config(args.config), args, say_once)
        refuse_impossible_batches(cfg)
        # For the hook that tells how to go on.
        cfg.resume_command = resume_command(
            launch_command(cfg.launcher, os.environ, _program()),
            sys.argv[1:] if argv is None else argv,
            cfg.work_dir,
        )
        note = join_ranks(cfg)
        if note is not None:
            say_once(note)
        settle_checkpoint(cfg, args, say_once)
        _train(cfg)
    except StoppedBySignal as stop:
        say_once(f'{stop}; the command to go on is above')
        return stop.exit_code
    except ReportedByRankZero as echo:
        return echo.exit_code
    except TrainingDiverged as error:
        say_once(f'error: diverged; the reason is above, and in {error.file}')
        return error.exit_code
    except MMStableError as error:
        _say(f'error: {error}')
        return error.exit_code
    except KeyboardInterrupt:
        say_once('interrupted')
        return _EXIT_INTERRUPTED
    return 0


def edit_config(
    cfg: Config, args: argparse.Namespace, say: Callable[[str], None]
) -> Config:
    """Translate ``cfg`` if it is old, and apply the command line."""
    cfg = modernize(cfg, args.cfg_options, say)
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
    edits.drop_absent_hooks(cfg)
    cfg.launcher = args.launcher
    return cfg


def _train(cfg: Config) -> None:
    try:
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


def _say_nothing(text: str) -> None:
    """Rank 0 says it."""


def _say(text: str) -> None:
    # It may quote names and texts out of files that others have made.
    line = printable(text, _LONGEST_LINE)
    print(f'mmstable train: {line}', file=sys.stderr, flush=True)
