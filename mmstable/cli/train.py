"""``mmstable train``: from a config file to a trained model."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import mmstable.cli.command as cli
from mmstable.checkpoint.signals import wait_for_training
from mmstable.dist.launch import rank_of
from mmstable.errors import (
    EXIT_CODES,
    SCHEDULERS,
    MMStableError,
    PeerFailedError,
    StoppedBySignal,
    TrainingDiverged,
    UsageError,
)
from mmstable.io.heartbeat import (
    begin_heartbeat,
    end_heartbeat,
    write_failure,
)
from mmstable.messages import N_, _, choose_language
from mmstable.messages.secrets import MASK, mask_words

if TYPE_CHECKING:
    from mmengine.config import Config
    from mmengine.runner import Runner

    from mmstable.protection import Protection


class Edited(NamedTuple):
    """A config as the command line wants it.

    Args:
        cfg (Config): The config.
        plain (Mapping): What ``mmstable check`` would see of it: without
            the options of ``mmstable train``, and unprotected.
        protection (Protection, optional): What was changed to protect it.
    """

    cfg: Config
    plain: Mapping[str, Any]
    protection: Protection | None


def train(args: argparse.Namespace) -> int:
    """Train as the command line says, and return the exit code.

    Args:
        args (argparse.Namespace): The options, and all ``words`` of the
            command line.
    """
    from mmstable.dist.collectives import leave_after_rank_zero

    if args.exit_codes is not None:
        os.environ[EXIT_CODES] = args.exit_codes
    if args.max_time is not None:
        # A restart does not give more time.
        end = str(int(time.time() + args.max_time))
        os.environ.setdefault('MMSTABLE_DEADLINE', end)
    if args.max_restarts:
        return _supervise(args)
    try:
        code = _train(args)
    except BaseException as error:
        from mmstable.dist.failure import report_failure

        failure = report_failure(error)
        if failure is None or isinstance(error, MMStableError):
            raise
        write_failure(failure)
        text = _('{failure}. This rank stops.', failure=failure)
        raise PeerFailedError(text) from error
    if code:
        leave_after_rank_zero()
    return code


def _train(args: argparse.Namespace) -> int:
    from mmstable.cli import start as starts
    from mmstable.cli.mistakes import build_runner, explained
    from mmstable.dist.collectives import ReportedByRankZero
    from mmstable.runner_view import StartNotes, note_start

    is_first = rank_of(args.launcher) == 0
    try:
        cfg, warnings, changes = _prepare(args)
        with _lock(cfg, args.force):
            begin_heartbeat(cfg.work_dir, rank_of(args.launcher))
            starts.apply_start(cfg, starts.choose_start(cfg, args), args)
            with explained(cfg=cfg._cfg_dict):
                runner = build_runner(cfg)
                # No mistake is in sight.
                for line in changes:
                    cli.say(line)
                note_start(runner, StartNotes(tuple(warnings), tuple(changes)))
                _show_progress(runner, args)
                runner.train()
    except StoppedBySignal as stop:
        text = N_('stopped by {signal}; the command to resume is above')
        cli.tell(text, signal=stop.name)
        if args.requeue and is_first:
            _requeue()
        return stop.exit_code
    except ReportedByRankZero as echo:
        return echo.exit_code
    except TrainingDiverged as error:
        if is_first:
            text = N_('error: diverged; the reason is above, and in {file}')
            cli.say_error(_(text, file=error.file))
        return error.exit_code
    end_heartbeat()
    return 0


def _show_progress(runner: Runner, args: argparse.Namespace) -> None:
    """Show a progress line in a terminal."""
    if sys.stdout.isatty() and not args.quiet and rank_of(args.launcher) == 0:
        from mmstable.cli.progress import ProgressLine

        runner.register_hook(ProgressLine())


def _requeue() -> None:
    """Let Slurm start this job again, which was stopped but is not done."""
    job = os.environ.get('SLURM_JOB_ID', '')
    try:
        subprocess.run(['scontrol', 'requeue', job], check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        cli.tell('--requeue: job {job}: {error}', job=job, error=error)
    else:
        cli.tell('job {job} is in the queue again', job=job)


def _supervise(args: argparse.Namespace) -> int:
    """Train in another process, which is started again if it fails."""
    from mmstable.cli import start as starts
    from mmstable.cli.supervise import OPTION, Supervisor
    from mmstable.report.page import write_if_quick

    words = starts.without_option(args.words, OPTION)
    program = starts.program_of(sys.argv[0])
    if args.launcher != 'none':
        if rank_of(args.launcher) != 0:
            return UsageError.exit_code
        raise cli.usage_error(
            '--max-restarts starts processes itself, so it does not go with '
            '--launcher {launcher}: use `mmstable dist-train CONFIG N '
            '--max-restarts {most}` on each machine, or let the scheduler '
            'start the job again with --resume auto (`sbatch --requeue`).',
            launcher=args.launcher,
            most=args.max_restarts,
        )
    cfg = read_quietly(args)
    supervisor = Supervisor(
        starts.own_program(program, sys.argv[0]),
        starts.with_work_dir(words, cfg.work_dir),
        starts.folders_of(cfg),
    )
    code = supervisor.run(args.max_restarts)
    if code and all(hook.get('report') is not False for hook in _hooks(cfg)):
        # A process that was killed could not do it.
        with suppress(Exception):
            write_if_quick(cfg.work_dir)
    return code


def read_quietly(args: argparse.Namespace) -> Config:
    """Read the config of a run that another process trains.

    That one prints what there is to print about it.
    """
    cli.begin('train', quiet=True)
    cfg = edit_config(args).cfg
    cli.begin('train', args.quiet)
    return cfg


def _prepare(
    args: argparse.Namespace,
) -> tuple[Config, list[str], list[str]]:
    """Join the ranks; return the config, warnings about it and changes."""
    from mmstable.cli import start as starts
    from mmstable.cli.mistakes import check_start, check_work_dir
    from mmstable.dist.collectives import join_ranks

    if mask_words(args.words) != args.words:
        cli.tell(
            'the command line has secrets, which mmstable shows as {mask}. '
            'mmengine writes them into the config in the work directory, its '
            'log and the checkpoints: take them from the environment instead.',
            mask=MASK,
        )
    cfg, plain, protection = edit_config(args)
    warnings = check_start(cfg, plain, args)
    for line in warnings:
        cli.say(line)
    check_work_dir(cfg.work_dir)
    choose_language(_hooks(cfg))
    # For the hook that tells how to resume.
    program = starts.program_of(sys.argv[0])
    launch = starts.launch_command(cfg.launcher, os.environ, program)
    cfg.resume_command = starts.resume_command(
        launch, args.words, cfg.work_dir
    )
    note = join_ranks(cfg)
    if note is not None:
        cli.say(note)
    changes: list[str] = []
    if protection is not None:
        text = N_('protected with preset {preset} (--as-is changes nothing):')
        title = _(text, preset=protection.preset)
        changes = list(protection.lines(title))
    return cfg, warnings, changes


@contextmanager
def _lock(cfg: Config, force: bool) -> Iterator[None]:
    """Keep other runs out; rank 0 does it for all ranks."""
    from mmstable.cli import start as starts
    from mmstable.dist.collectives import decide_on_rank_zero
    from mmstable.io.lock import locked

    with ExitStack() as stack:
        folders = [f for f in starts.folders_of(cfg) if isinstance(f, Path)]
        lock = locked(folders, force, cli.say)
        decide_on_rank_zero(lambda: stack.enter_context(lock))
        yield


def edit_config(args: argparse.Namespace) -> Edited:
    """Read the config, translate it if it is old, edit and protect it."""
    from mmstable.cli import config as edits
    from mmstable.protection import apply_changes, drop_absent_hooks

    options = edits.read_options(args.cfg_options)
    cfg = edits.modernize(edits.load_config(args.config), options)
    plain = edits.plain_settings(cfg)
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
    protection = None
    if not args.as_is:
        protection = protection_of(cfg, args)
        apply_changes(cfg._cfg_dict, protection.changes)
    elif args.preset or args.memory:
        text = N_('--as-is changes nothing: it does not go with {option}.')
        option = '--preset' if args.preset else '--memory'
        raise cli.usage_error(text, option=option)
    drop_absent_hooks(cfg)
    cfg.launcher = args.launcher
    return Edited(cfg, plain, protection)


def protection_of(cfg: Config, args: argparse.Namespace) -> Protection:
    """The changes that ``--preset`` and ``--memory`` ask for."""
    from mmstable.cli.config import plain_settings
    from mmstable.protection import find_changes

    preset = args.preset or 'default'
    if args.memory is not None and preset == 'observe_only':
        raise cli.usage_error(
            '--memory changes training, and --preset observe_only does '
            'not: choose one of them.'
        )
    return find_changes(plain_settings(cfg), preset, args.memory)


def _hooks(cfg: Config) -> list[Any]:
    hooks = cfg.get('default_hooks') or {}
    return [*hooks.values(), *(cfg.get('custom_hooks') or [])]


def _duration(text: str) -> int:
    """Parse a time as 23h50m, 90m, 1d2h or 600s; return its seconds."""
    units = {'d': 86400, 'h': 3600, 'm': 60, 's': 1}
    if not re.fullmatch(r'(\d+[dhms])+', text):
        raise argparse.ArgumentTypeError(
            _("a time is expected, as 23h50m or 90m, got '{text}'", text=text)
        )
    found = re.findall(r'(\d+)([dhms])', text)
    return sum(int(count) * units[unit] for count, unit in found)


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


COMMAND = cli.Command(
    train,
    (
        cli.CONFIG,
        cli.flag(
            '--as-is',
            'train the config as it is: no class is made safe, no hook added',
        ),
        *cli.PROTECTION,
        cli.option(
            '--work-dir',
            'folder for logs and checkpoints; work_dirs/<name of the '
            'config> if neither this nor the config says',
        ),
        cli.flag(
            '--force', 'train although another run seems to use the work dir'
        ),
        cli.option(
            '--amp',
            'train in mixed precision with mmstable.SafeAmpOptimWrapper; '
            'in fp16 if neither this nor the config says',
            nargs='?',
            const='auto',
            choices=['auto', 'fp16', 'bf16'],
        ),
        cli.flag(
            '--auto-scale-lr',
            'scale the learning rate by the batch size of all ranks over '
            'auto_scale_lr.base_batch_size of the config',
        ),
        cli.CFG_OPTIONS,
        cli.number(
            '--max-restarts',
            0,
            'start the run again up to N times after a crash, a hang or '
            'a kill, from its newest good checkpoint',
            default=0,
        ),
        cli.option(
            '--max-time',
            'save and stop before so much time is over, as 23h50m, with exit '
            'code 25; the end of a Slurm job is known without it',
            type=_duration,
            metavar='TIME',
        ),
        cli.flag(
            '--requeue',
            'put a Slurm job back into the queue when it was stopped by a '
            'signal or its time limit',
        ),
        cli.option(
            '--exit-codes',
            'end with the exit codes of a scheduler; with `kubeflow`, 138 '
            'if the run can be resumed; MMSTABLE_EXIT_CODES does the same',
            choices=sorted(SCHEDULERS),
        ),
        cli.option('--seed', 'seed of all generators', type=int),
        cli.flag(
            '--deterministic', 'let torch use deterministic algorithms only'
        ),
        cli.flag('--no-validate', 'do not validate during training'),
        cli.option(
            '--probe',
            'let `mmstable probe` look into the run, through a socket '
            'that is open to you only (`socket`, the default); with '
            '`--probe probing` also the package `probing`, which lets '
            'every user of the machine run code as you',
            nargs='?',
            const='socket',
            choices=['socket', 'probing'],
        ),
        cli.flag(
            '--check',
            'say all that `mmstable check` would say, and train only if '
            'there are no errors; without it the worst is told in a few lines',
        ),
        (
            cli.option(
                '--resume',
                'resume from a checkpoint; from the newest good one of '
                'the work dir by default',
                nargs='?',
                const='auto',
                metavar='auto|PATH',
            ),
            cli.option(
                '--resume-from',
                'the same; a folder stands for its newest good checkpoint',
                metavar='auto|PATH',
            ),
            cli.option(
                '--load-from',
                'start a new run with the weights of this checkpoint',
                metavar='PATH',
            ),
        ),
        cli.number(
            '--before-iter',
            1,
            'resume from the newest good checkpoint before iteration N',
        ),
        cli.flag(
            '--override-lr-schedule',
            'use the learning rate, the other numbers of the optimizer '
            'and the schedule of the config, moved to where the run is, '
            'not those in the checkpoint',
        ),
        cli.flag(
            '--trust-checkpoint',
            'load the named checkpoint even if that runs code in it',
        ),
        cli.option(
            '--allow-partial',
            'resume although up to this share of the weights does not '
            'fit the model; 0.5 without a number',
            nargs='?',
            type=_share,
            const=0.5,
            default=0.0,
            metavar='SHARE',
        ),
        *cli.LAUNCHER,
    ),
    prepare=wait_for_training,
)
