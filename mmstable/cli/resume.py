"""Which checkpoint does ``mmstable train`` go on from?"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
from pathlib import Path
from typing import Callable

from mmengine.config import Config
from mmengine.dist import all_gather_object

from mmstable.checkpoint.finder import (
    GoodCheckpoint,
    Search,
    find_checkpoint,
    verify_checkpoint,
)
from mmstable.checkpoint.loading import (
    BadCheckpoint,
    check_container,
    check_weights,
)
from mmstable.checkpoint.schemes import pin_checkpoint, trust_checkpoint
from mmstable.distributed.join_ranks import decide_on_rank_zero
from mmstable.errors import CheckpointError, UsageError
from mmstable.messages.printable import printable


def settle_checkpoint(
    cfg: Config, args: argparse.Namespace, say: Callable[[str], None]
) -> None:
    """Find and verify what ``cfg`` loads, before anything is built.

    Rank 0 looks for it, and all others follow: each by itself might see
    another state of a shared disk.

    Args:
        cfg (Config): The config, changed in place.
        args (argparse.Namespace): The command line.
        say (Callable): Prints a line for the user.
    """
    cfg.load_from, cfg.resume, shown, sha256 = decide_on_rank_zero(
        lambda: _decide(cfg, args, say)
    )
    _check_all_see(cfg.load_from)
    if sha256 is not None:
        pin_checkpoint(cfg.load_from, sha256)
    if args.trust_checkpoint:
        cfg.load_from = trust_checkpoint(cfg.load_from)
    if cfg.resume:
        _add_report(cfg, shown, args.override_lr_schedule)


def _decide(
    cfg: Config, args: argparse.Namespace, say: Callable[[str], None]
) -> tuple[str | None, bool, str | None, str | None]:
    """What to load, whether to resume, what to call it, and its digest."""
    path, resume = cfg.get('load_from'), bool(cfg.get('resume'))
    _check_options(args, resume, path)
    if path is not None and '://' in path:
        # It is fetched when it is loaded.
        return path, resume, path, None
    found: GoodCheckpoint | None = None
    if args.trust_checkpoint and path is not None:
        _warn_of_trust(path, say)
    elif not resume:
        if path is not None:
            check_weights(path)
    elif path is None or os.path.isdir(path):
        found = _find(Path(path or cfg.work_dir), args.before_iter, say)
        resume = found is not None
    else:
        found = _verify(Path(path))
    if found is None:
        return path, resume, path, None
    return str(found.path), True, str(found.path), found.sha256


def _check_options(
    args: argparse.Namespace, resume: bool, path: str | None
) -> None:
    if args.trust_checkpoint and (path is None or '://' in path):
        raise UsageError(
            '--trust-checkpoint is for one local file: name it by '
            '--resume-from or --load-from.'
        )
    if args.override_lr_schedule and not resume:
        raise UsageError('--override-lr-schedule goes with --resume.')
    is_file = path is not None and not os.path.isdir(path)
    if args.before_iter is not None and is_file:
        raise UsageError(
            f"--before-iter chooses a checkpoint, but '{path}' is named."
        )


def _check_all_see(path: str | None) -> None:
    is_missing = path is not None and not (
        '://' in path or os.path.exists(path)
    )
    nodes = all_gather_object(platform.node() if is_missing else '')
    blind = sorted({node for node in nodes if node})
    if blind:
        raise CheckpointError(
            f"'{path}' is there on rank 0, but not on {', '.join(blind)}: "
            'checkpoints must be on a disk that all machines share.'
        )


def _warn_of_trust(path: str, say: Callable[[str], None]) -> None:
    check_container(Path(path))
    say(
        f"--trust-checkpoint: '{path}' is loaded without the guard. If there "
        'is code in it, that code runs now, with all your rights. Other '
        'files are guarded as always.'
    )


def _find(
    folder: Path, before_iter: int | None, say: Callable[[str], None]
) -> GoodCheckpoint | None:
    search = find_checkpoint(folder, before_iter)
    for reason in search.skipped:
        say(f'skipped {reason}')
    if search.found is not None:
        say(f"resuming from '{printable(search.found.path)}'")
        return search.found
    if search.skipped:
        # A fresh start would write over what is left of the old run.
        raise CheckpointError(
            f"no checkpoint in '{folder}' can be resumed, see above. To "
            'start anew, do so without --resume.'
        )
    say(f"no checkpoint in '{folder}' yet: starting from the beginning")
    return None


def _verify(path: Path) -> GoodCheckpoint:
    try:
        return verify_checkpoint(path)
    except BadCheckpoint as error:
        other = _advise(find_checkpoint(path.resolve().parent))
        raise CheckpointError(f'{error}.{other}') from error


def _advise(search: Search) -> str:
    if search.found is None:
        return ' There is no good one in its folder.'
    return (
        ' The newest good one there is of iteration '
        f'{search.found.iteration}: --resume-from '
        f'{shlex.quote(str(search.found.path))}'
    )


def _add_report(
    cfg: Config, checkpoint: str | None, override_lr_schedule: bool
) -> None:
    hook = dict(
        type='mmstable.ResumeReportHook',
        checkpoint=checkpoint,
        override_lr_schedule=override_lr_schedule,
    )
    cfg.custom_hooks = [*(cfg.get('custom_hooks') or []), hook]
