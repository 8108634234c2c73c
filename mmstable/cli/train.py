"""``mmstable train``: from a config file to a trained model."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Callable

import torch
from mmengine.config import Config
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from mmstable.cli import config_edits as edits
from mmstable.cli.command import say as say_for
from mmstable.cli.command import say_error
from mmstable.cli.config_checks import check_start, check_work_dir
from mmstable.cli.config_file import check_config_path, load_config
from mmstable.cli.config_mistakes import check_log_level, explain_mistake
from mmstable.cli.config_options import read_options
from mmstable.cli.legacy_config import modernize
from mmstable.cli.protect_config import protect_config, tell_protection
from mmstable.cli.resume import apply_start, choose_start, folders_of
from mmstable.cli.resume_command import (
    launch_command,
    own_program,
    program_of,
    resume_command,
    without_option,
    without_start,
)
from mmstable.cli.run_lock import locked
from mmstable.cli.supervisor import OPTION, Supervisor
from mmstable.distributed.join_ranks import (
    ReportedByRankZero,
    decide_on_rank_zero,
    join_ranks,
    leave_after_rank_zero,
)
from mmstable.distributed.launchers import rank_of
from mmstable.errors import StoppedBySignal, TrainingDiverged, UsageError
from mmstable.messages import _, choose_language
from mmstable.messages.secrets import MASK, mask_words
from mmstable.messages.shell_command import shell_command
from mmstable.protection.change import Protection
from mmstable.report.write import write_if_quick


def train(args: argparse.Namespace) -> int:
    """Train as the command line says, and return the exit code.

    Args:
        args (argparse.Namespace): The options, and all ``words`` of the
            command line.
    """
    if args.local_rank is not None:
        # mmengine and its launchers read the variable, not the option.
        os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    is_first = rank_of(args.launcher) == 0
    say = partial(say_for, 'train') if is_first else _say_nothing
    if args.max_restarts:
        return _supervise(args, say)
    code = _train(args, say)
    if code:
        leave_after_rank_zero()
    return code


def _train(args: argparse.Namespace, say: Callable[[str], None]) -> int:
    try:
        cfg, protection = _prepare(args, say)
        with _lock(cfg, args.force, say):
            apply_start(cfg, choose_start(cfg, args, say), args)
            _build_and_train(cfg, lambda: tell_protection(protection, say))
    except StoppedBySignal as stop:
        say(
            _(
                'stopped by {signal}; the command to resume is above',
                signal=stop.name,
            )
        )
        return stop.exit_code
    except ReportedByRankZero as echo:
        return echo.exit_code
    except TrainingDiverged as error:
        if rank_of(args.launcher) == 0:
            say_error(
                'train',
                _(
                    'error: diverged; the reason is above, and in {file}',
                    file=error.file,
                ),
            )
        return error.exit_code
    return 0


def _supervise(args: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Train in another process, which is started again if it fails."""
    words = without_option(args.words, OPTION)
    program = program_of(sys.argv[0])
    if args.launcher != 'none':
        if rank_of(args.launcher) != 0:
            return UsageError.exit_code
        raise UsageError(
            _how_launchers_restart(args.launcher, program, words, args)
        )
    check_config_path(args.config)
    # The process that trains says what there is to say about it.
    cfg, __ = edit_config(load_config(args.config), args, _say_nothing)
    supervisor = Supervisor(
        own_program(program, sys.argv[0]),
        words,
        cfg.work_dir,
        folders_of(cfg),
        say,
    )
    code = supervisor.run(args.max_restarts)
    if code and not any(
        hook.get('report') is False for hook in _hooks_of(cfg)
    ):
        # A process that was killed could not do it.
        with suppress(Exception):
            write_if_quick(cfg.work_dir)
    return code


def _how_launchers_restart(
    launcher: str,
    program: list[str],
    words: list[str],
    args: argparse.Namespace,
) -> str:
    if launcher != 'pytorch':
        return _(
            '--max-restarts is for one process. With --launcher {launcher} '
            'let the scheduler start the job again (`sbatch --requeue`), '
            'with --resume auto.',
            launcher=launcher,
        )
    torchrun, *rest = launch_command(launcher, os.environ, program)
    command = [
        *(torchrun, f'{OPTION}={args.max_restarts}', *rest),
        *(*without_start(words), '--resume', 'auto'),
    ]
    return _(
        '--max-restarts is for one process. torchrun starts all ranks again '
        'by itself, on all machines: {command}',
        command=shell_command(command),
    )


def _prepare(
    args: argparse.Namespace, say: Callable[[str], None]
) -> tuple[Config, Protection | None]:
    """The config, complete, and with the ranks joined."""
    check_config_path(args.config)
    _choose_gpus(args.gpu_ids, args.launcher, say)
    if mask_words(args.words) != args.words:
        say(
            _(
                'the command line has secrets, which mmstable shows as '
                '{mask}. mmengine writes them into the config in the work '
                'directory, its log and the checkpoints: take them from the '
                'environment instead.',
                mask=MASK,
            )
        )
    cfg, protection = edit_config(load_config(args.config), args, say)
    check_start(cfg, args, say)
    check_work_dir(cfg.work_dir)
    choose_language(_hooks_of(cfg))
    # For the hook that tells how to resume.
    cfg.resume_command = resume_command(
        launch_command(cfg.launcher, os.environ, program_of(sys.argv[0])),
        args.words,
        cfg.work_dir,
    )
    note = join_ranks(cfg)
    if note is not None:
        say(note)
    return cfg, protection


@contextmanager
def _lock(
    cfg: Config, force: bool, say: Callable[[str], None]
) -> Iterator[None]:
    """Keep other runs out; rank 0 does it for all ranks."""
    with ExitStack() as stack:
        lock = locked(folders_of(cfg), force, say)
        decide_on_rank_zero(lambda: stack.enter_context(lock))
        yield


def edit_config(
    cfg: Config, args: argparse.Namespace, say: Callable[[str], None]
) -> tuple[Config, Protection | None]:
    """Translate ``cfg`` if it is old, apply the command line, protect it."""
    cfg = modernize(cfg, read_options(args.cfg_options or []), say)
    edits.set_work_dir(cfg, args.work_dir, args.config)
    edits.set_seed(cfg, args.seed, args.deterministic)
    if args.amp is not None:
        edits.enable_amp(cfg, args.amp)
    if args.auto_scale_lr:
        edits.scale_learning_rate(cfg)
    if args.no_validate:
        edits.disable_validation(cfg)
    if args.probe:
        edits.add_probe(cfg, args.probe)
    protection = protect_config(cfg, args)
    edits.drop_absent_hooks(cfg)
    cfg.launcher = args.launcher
    return cfg, protection


def _hooks_of(cfg: Config) -> list[Any]:
    hooks = cfg.get('default_hooks') or {}
    return [*hooks.values(), *(cfg.get('custom_hooks') or [])]


def _build_and_train(cfg: Config, begin: Callable[[], None]) -> None:
    """Train, and call ``begin`` as soon as there is no mistake in sight."""
    try:
        check_log_level(cfg)
        if cfg.get('runner_type') is None:
            runner = Runner.from_cfg(cfg)
        else:
            runner = RUNNERS.build(cfg)
        begin()
        runner.train()
    except Exception as error:
        mistake = explain_mistake(error)
        if mistake is None:
            raise
        raise UsageError(mistake) from error


def _choose_gpus(
    gpu_ids: list[int] | None, launcher: str, say: Callable[[str], None]
) -> None:
    if gpu_ids is None:
        return
    # Read by CUDA when it starts, so this comes before anything uses it.
    os.environ['CUDA_VISIBLE_DEVICES'] = ','.join(map(str, gpu_ids))
    if not torch.cuda.is_available():
        say(
            _(
                '--gpu-ids {ids}: no such GPU here, the option is ignored',
                ids=str(gpu_ids),
            )
        )
    elif launcher == 'none' and len(gpu_ids) > 1:
        say(_('only the first of --gpu-ids is used without --launcher'))


def _say_nothing(text: str) -> None:
    """Rank 0 says it."""
