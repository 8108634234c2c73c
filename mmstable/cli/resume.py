"""What does ``mmstable train`` load, and does it resume from that?"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable

from mmengine.config import Config
from mmengine.dist import all_gather_object

from mmstable.checkpoint.candidates import rank_candidates
from mmstable.checkpoint.finder import (
    GoodCheckpoint,
    Search,
    find_checkpoint,
    verify_checkpoint,
    verify_weights,
)
from mmstable.checkpoint.loading import (
    BadCheckpoint,
    check_container,
)
from mmstable.checkpoint.schemes import pin_checkpoint, trust_checkpoint
from mmstable.checkpoint.storage import checkpoint_folder
from mmstable.cli.progress import working
from mmstable.cli.suggest import near_files
from mmstable.distributed.join_ranks import decide_on_rank_zero
from mmstable.errors import CheckpointError, UsageError
from mmstable.messages import _


@dataclass(frozen=True)
class Start:
    """What a run starts with.

    Args:
        checkpoint (str, optional): What to load; None for nothing, or, with
            ``resume``, for the newest good one of the work dir.
        resume (bool): Whether to resume from it, rather than to start a new
            run with its weights.
        reason (str): Who asked for it.
        sha256 (str, optional): The digest of what was verified, which is
            what may be loaded. Defaults to None.
    """

    checkpoint: str | None
    resume: bool
    reason: str
    sha256: str | None = None

    def __str__(self) -> str:
        if self.checkpoint is None:
            return _('starting from the beginning')
        return _(
            "resuming from '{path}' ({reason})"
            if self.resume
            else "starting with weights of '{path}' ({reason})",
            path=self.checkpoint,
            reason=self.reason,
        )


def choose_start(
    cfg: Config, args: argparse.Namespace, say: Callable[[str], None]
) -> Start:
    """Decide what a run starts with, and verify it. A collective call.

    Rank 0 looks for it, and all others follow: each by itself might see
    another state of a shared disk.

    Args:
        cfg (Config): The config. What it says counts if the command line says
            nothing, or asks for the newest checkpoint and there is none yet.
        args (argparse.Namespace): The command line.
        say (Callable): Prints a line for the user.
    """
    start = decide_on_rank_zero(lambda: _decide(cfg, args, say))
    _check_all_see(start.checkpoint)
    return start


def apply_start(cfg: Config, start: Start, args: argparse.Namespace) -> None:
    """Make a config start as it was decided."""
    cfg.load_from, cfg.resume = start.checkpoint, start.resume
    if start.checkpoint is not None and start.sha256 is not None:
        pin_checkpoint(start.checkpoint, start.sha256)
    if args.trust_checkpoint:
        cfg.load_from = trust_checkpoint(cfg.load_from)
    if start.resume:
        _add_hooks(cfg, start.checkpoint, args)


def folders_of(cfg: Config) -> list[Path]:
    """Where a run is going to write: its work dir first.

    Args:
        cfg (Config): Its config.
    """
    hook = (cfg.get('default_hooks') or {}).get('checkpoint')
    out_dir = hook.get('out_dir') if isinstance(hook, dict) else None
    folders = [cfg.work_dir, checkpoint_folder(out_dir, cfg.work_dir)]
    local = [one for one in folders if '://' not in one]
    return [Path(one) for one in dict.fromkeys(local)]


def _decide(
    cfg: Config, args: argparse.Namespace, say: Callable[[str], None]
) -> Start:
    by_options = _by_options(args)
    by_config = Start(
        cfg.get('load_from'),
        bool(cfg.get('resume')),
        _('the config'),
    )
    wanted = by_options or by_config
    _check_options(args, wanted)
    folders = folders_of(cfg)
    start = _look_up(wanted, folders, args, say)
    if by_options and by_config.checkpoint and start.checkpoint is None:
        start = _look_up(by_config, folders, args, say)
    if not start.resume:
        _warn_of_used_folder(folders, cfg.get('resume_command'), say)
    if wanted.resume or start.checkpoint is not None:
        say(str(start))
    return start


def _by_options(args: argparse.Namespace) -> Start | None:
    """What the command line asks for, if anything."""
    for option, path, resume in (
        ('--resume', args.resume, True),
        ('--resume-from', args.resume_from, True),
        ('--load-from', args.load_from, False),
    ):
        if path is not None:
            automatic = resume and path == 'auto'
            return Start(None if automatic else path, resume, option)
    if args.before_iter is not None:
        return Start(None, True, '--before-iter')
    return None


def _look_up(
    wanted: Start,
    folders: Sequence[Path],
    args: argparse.Namespace,
    say: Callable[[str], None],
) -> Start:
    """Find what is wanted, and verify that it can be loaded."""
    path = wanted.checkpoint
    if path is not None and '://' in path:
        # It is fetched when it is loaded.
        return wanted
    if path is not None and not os.path.exists(path):
        raise UsageError(
            _(
                "{reason}: no checkpoint '{path}'.{hint}",
                reason=wanted.reason,
                path=path,
                hint=near_files(path),
            )
        )
    if wanted.resume and (path is None or os.path.isdir(path)):
        if path is not None and Path(path).resolve() != folders[0].resolve():
            folders = [Path(path)]
        found = _find(folders, args.before_iter, say)
        if found is None:
            return Start(None, False, wanted.reason)
        return _resumed(found, wanted.reason)
    if path is not None:
        if args.trust_checkpoint:
            _warn_of_trust(path, say)
        elif wanted.resume:
            return _resumed(_verify(Path(path)), wanted.reason)
        else:
            with working(_("reading '{path}'", path=path)):
                sha256 = verify_weights(Path(path))
            return replace(wanted, sha256=sha256)
    return wanted


def _resumed(found: GoodCheckpoint, reason: str) -> Start:
    return Start(str(found.path), True, reason, found.sha256)


def _check_options(args: argparse.Namespace, wanted: Start) -> None:
    path = wanted.checkpoint
    is_search = path is None or os.path.isdir(path)
    if args.trust_checkpoint and (is_search or '://' in str(path)):
        raise UsageError(
            _(
                '--trust-checkpoint is for one local file: name it by '
                '--resume-from or --load-from.'
            )
        )
    for option, given in (
        ('--override-lr-schedule', args.override_lr_schedule),
        ('--allow-partial', args.allow_partial),
    ):
        if given and not wanted.resume:
            raise UsageError(_('{option} goes with --resume.', option=option))
    if args.before_iter is not None and not is_search:
        raise UsageError(
            _(
                "--before-iter chooses a checkpoint, but '{path}' is named "
                'by {reason}.',
                path=path,
                reason=wanted.reason,
            )
        )


def _check_all_see(path: str | None) -> None:
    is_missing = path is not None and not (
        '://' in path or os.path.exists(path)
    )
    nodes = all_gather_object(platform.node() if is_missing else '')
    blind = sorted({node for node in nodes if node})
    if blind:
        raise CheckpointError(
            _(
                "'{path}' is there on rank 0, but not on {nodes}: "
                'checkpoints must be on a disk that all machines share.',
                path=path,
                nodes=blind,
            )
        )


def _warn_of_trust(path: str, say: Callable[[str], None]) -> None:
    check_container(Path(path))
    say(
        _(
            "--trust-checkpoint: '{path}' is loaded without the guard. If "
            'there is code in it, that code runs now, with all your rights. '
            'Other files are guarded as always.',
            path=path,
        )
    )


def _find(
    folders: Sequence[Path],
    before_iter: int | None,
    say: Callable[[str], None],
) -> GoodCheckpoint | None:
    folder, *others = folders
    with working(
        _("looking for a good checkpoint in '{folder}'", folder=folder)
    ):
        search = find_checkpoint(folder, before_iter, others)
    for reason in search.skipped:
        say(_('skipped {reason}', reason=reason))
    for note in search.notes:
        say(_('{note}; --resume-from takes it', note=note))
    if search.found is not None:
        return search.found
    if search.skipped:
        # A fresh start would write over what is left of the old run.
        raise CheckpointError(
            _(
                "no checkpoint in '{folder}' can be resumed, see above. To "
                'start anew, do so without --resume.',
                folder=folder,
            )
        )
    say(_("no checkpoint in '{folder}' yet", folder=folder))
    return None


def _warn_of_used_folder(
    folders: Sequence[Path],
    command: str | None,
    say: Callable[[str], None],
) -> None:
    ranking = rank_candidates(folders)
    if ranking.live:
        newest = ranking.live[0]
        resume = '--resume' if command is None else f'{command} --resume'
        say(
            _(
                "'{folder}' has checkpoints of an earlier run, the newest is "
                '{name} of iteration {iteration}. This is a new run, and '
                'replaces files of the same name. To continue the earlier '
                'one instead: {command}',
                folder=folders[0],
                name=newest.path.name,
                iteration=newest.iteration,
                command=resume,
            )
        )


def _verify(path: Path) -> GoodCheckpoint:
    try:
        with working(_("reading '{path}'", path=path)):
            return verify_checkpoint(path)
    except BadCheckpoint as error:
        search = find_checkpoint(path.resolve().parent)
        raise CheckpointError(_advise(error, search)) from error


def _advise(error: BadCheckpoint, search: Search) -> str:
    if search.found is None:
        return _('{error}. There is no good one in its folder.', error=error)
    return _(
        '{error}. The newest good one there is of iteration {iteration}: '
        '--resume-from {path}',
        error=error,
        iteration=search.found.iteration,
        path=shlex.quote(str(search.found.path)),
    )


def _add_hooks(
    cfg: Config, checkpoint: str | None, args: argparse.Namespace
) -> None:
    check = dict(
        type='mmstable.ResumeCheckHook', allow_partial=args.allow_partial
    )
    report = dict(
        type='mmstable.ResumeReportHook',
        checkpoint=checkpoint,
        override_lr_schedule=args.override_lr_schedule,
    )
    cfg.custom_hooks = [*(cfg.get('custom_hooks') or []), check, report]
