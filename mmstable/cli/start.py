"""What a run starts from, and the command that resumes it."""

from __future__ import annotations

import argparse
import glob
import os
import platform
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dist import all_gather_object

from mmstable.checkpoint import catalog, loaders, loading
from mmstable.checkpoint.config_text import config_values
from mmstable.checkpoint.folders import (
    AnyPath,
    checkpoint_folder,
    path_of,
    send_file,
)
from mmstable.checkpoint.shards import MARK
from mmstable.cli.command import near_files, say, tell, usage_error, working
from mmstable.dist.collectives import decide_on_rank_zero
from mmstable.errors import CheckpointError
from mmstable.messages import _
from mmstable.messages.secrets import shell_command
from mmstable.protection import owner_of_optimizer
from mmstable.vis_backend import continue_runs, run_ids

# Seconds that a shared disk may take to show a file to another machine.
_LONGEST_LAG_S = 30


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


def choose_start(cfg: Config, args: argparse.Namespace) -> Start:
    """Decide what a run starts with, and verify it. A collective call.

    Rank 0 looks for it, and all others follow: each by itself might see
    another state of a shared disk.

    Args:
        cfg (Config): The config. What it says counts if the command line says
            nothing, or asks for the newest checkpoint and there is none yet.
        args (argparse.Namespace): The command line.
    """
    start = decide_on_rank_zero(lambda: _decide(cfg, args))
    _check_all_see(start.checkpoint)
    return start


def apply_start(cfg: Config, start: Start, args: argparse.Namespace) -> None:
    """Make a config start as it was decided."""
    cfg.load_from, cfg.resume = start.checkpoint, start.resume
    if start.checkpoint is not None and start.sha256 is not None:
        loaders.pin_checkpoint(
            start.checkpoint, start.sha256, _hook_of(cfg).get('backend_args')
        )
    if args.trust_checkpoint:
        cfg.load_from = loaders.trust_checkpoint(cfg.load_from)
    if start.resume and not owner_of_optimizer(cfg):
        check = dict(
            type='mmstable.ResumeCheckHook', allow_partial=args.allow_partial
        )
        report = dict(
            type='mmstable.ResumeReportHook',
            checkpoint=start.checkpoint,
            override_lr_schedule=args.override_lr_schedule,
        )
        cfg.custom_hooks = [*(cfg.get('custom_hooks') or []), check, report]
    _continue_dashboards(cfg, start)


def _continue_dashboards(cfg: Config, start: Start) -> None:
    backends = (cfg.get('visualizer') or {}).get('vis_backends')
    if not isinstance(backends, list):
        return
    work_dir = Path(cfg.work_dir)

    def saved() -> Any:
        # The config in the checkpoint has the ids.
        content = loading.inspect_checkpoint(str(start.checkpoint))
        values = config_values(content.get('meta', {}).get('cfg')) or {}
        visualizer = values.get('visualizer')
        return isinstance(visualizer, dict) and visualizer.get('vis_backends')

    def decide() -> dict[str, str]:
        try:
            return run_ids(backends, work_dir, start.resume, saved)
        except loading.BadCheckpoint:
            # Whatever is wrong with it is reported when it is loaded.
            return run_ids(backends, work_dir, False)

    ids = decide_on_rank_zero(decide)
    continue_runs(backends, work_dir, ids, start.resume)


def folders_of(cfg: Config) -> list[AnyPath]:
    """Where a run is going to write: its work dir first.

    Args:
        cfg (Config): Its config.
    """
    hook = _hook_of(cfg)
    folder = checkpoint_folder(hook.get('out_dir'), cfg.work_dir)
    other = path_of(folder, hook.get('backend_args'))
    return list(dict.fromkeys([Path(cfg.work_dir), other]))


def _hook_of(cfg: Config) -> Mapping[str, Any]:
    hook = (cfg.get('default_hooks') or {}).get('checkpoint')
    return hook if isinstance(hook, dict) else {}


def _decide(cfg: Config, args: argparse.Namespace) -> Start:
    by_options = _by_options(args)
    by_config = Start(
        cfg.get('load_from'), bool(cfg.get('resume')), _('the config')
    )
    wanted = start = by_options or by_config
    _check_options(args, wanted)
    is_ours = not owner_of_optimizer(cfg)
    if is_ours:
        folders = folders_of(cfg)
        start = _look_up(wanted, folders, args)
        if by_options and by_config.checkpoint and start.checkpoint is None:
            start = _look_up(by_config, folders, args)
    elif wanted.resume and wanted.checkpoint is None:
        # The newest complete folder that an engine has saved.
        from mmstable.hooks.engine_hook import newest_complete

        found = newest_complete(Path(cfg.work_dir))
        path = None if found is None else str(found.absolute())
        start = Start(path, found is not None, wanted.reason)
    if is_ours and not start.resume:
        _warn_of_used_folder(folders, cfg.get('resume_command'))
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
    wanted: Start, folders: Sequence[AnyPath], args: argparse.Namespace
) -> Start:
    """Find what is wanted, and verify that it can be loaded."""
    path = wanted.checkpoint
    if path is not None and '://' in path:
        # It is fetched when it is loaded.
        return wanted
    if path is not None and not os.path.exists(path):
        raise usage_error(
            "{reason}: no checkpoint '{path}'.{hint}",
            reason=wanted.reason,
            path=path,
            hint=near_files(path),
        )
    if wanted.resume and (path is None or os.path.isdir(path)):
        own = Path(str(folders[0])).resolve()
        if path is not None and Path(path).resolve() != own:
            folders = [Path(path)]
        found = _find(folders, args.before_iter)
        if found is None:
            return Start(None, False, wanted.reason)
        return Start(str(found.path), True, wanted.reason, found.sha256)
    if path is None:
        return wanted
    if args.trust_checkpoint:
        loading.check_container(Path(path))
        tell(
            "--trust-checkpoint: '{path}' is loaded without the guard. If "
            'there is code in it, that code runs now, with all your rights. '
            'Other files are guarded as always.',
            path=path,
        )
        return wanted
    with working(_("reading '{path}'", path=path)):
        if not wanted.resume:
            return replace(wanted, sha256=catalog.verify_weights(Path(path)))
        found = _verify(Path(path))
    return Start(str(found.path), True, wanted.reason, found.sha256)


def _check_options(args: argparse.Namespace, wanted: Start) -> None:
    path = wanted.checkpoint
    is_search = path is None or os.path.isdir(path)
    if args.trust_checkpoint and (is_search or '://' in str(path)):
        raise usage_error(
            '--trust-checkpoint is for one local file: name it by '
            '--resume-from or --load-from.'
        )
    for option, given in (
        ('--override-lr-schedule', args.override_lr_schedule),
        ('--allow-partial', args.allow_partial),
    ):
        if given and not wanted.resume:
            raise usage_error('{option} goes with --resume.', option=option)
    if args.before_iter is not None and not is_search:
        raise usage_error(
            "--before-iter chooses a checkpoint, but '{path}' is named "
            'by {reason}.',
            path=path,
            reason=wanted.reason,
        )


def _check_all_see(path: str | None) -> None:
    """Wait for a file, and send it to machines that still miss it."""
    is_missing = not (path is None or '://' in path or _appears(path))
    nodes = all_gather_object(platform.node() if is_missing else '')
    blind = sorted({node for node in nodes if node})
    if not blind or path is None:
        return
    has_shards = decide_on_rank_zero(
        lambda: any(
            Path(path).parent.glob(f'{glob.escape(Path(path).name)}{MARK}*')
        )
    )
    if has_shards or nodes[0]:
        raise CheckpointError(
            _(
                "'{path}' is there on rank 0, but not on {nodes}: "
                'checkpoints must be on a disk that all machines share.',
                path=path,
                nodes=blind,
            )
        )
    tell("'{path}' is sent to {nodes}", path=path, nodes=blind)
    send_file(Path(path), is_missing)


def _appears(path: str) -> bool:
    """Wait for a file: disks that machines share can lag behind."""
    for second in range(_LONGEST_LAG_S + 1):
        with suppress(OSError):
            # Listing a folder makes NFS look at it again.
            os.listdir(os.path.dirname(os.path.abspath(path)))
        if os.path.exists(path):
            return True
        if second < _LONGEST_LAG_S:
            time.sleep(1)
    return False


def _find(
    folders: Sequence[AnyPath], before_iter: int | None
) -> catalog.GoodCheckpoint | None:
    folder, *others = folders
    with working(
        _("looking for a good checkpoint in '{folder}'", folder=folder)
    ):
        search = catalog.find_checkpoint(folder, before_iter, others)
    for reason in search.skipped:
        tell('skipped {reason}', reason=reason)
    for note in search.notes:
        tell('{note}; --resume-from takes it', note=note)
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
    tell("no checkpoint in '{folder}' yet", folder=folder)
    return None


def _warn_of_used_folder(
    folders: Sequence[AnyPath], command: str | None
) -> None:
    ranking = catalog.rank_candidates(folders)
    if ranking.live:
        newest = ranking.live[0]
        tell(
            "'{folder}' has checkpoints of an earlier run, the newest is "
            '{name} of iteration {iteration}. This is a new run, and '
            'replaces files of the same name. To continue the earlier '
            'one instead: {command}',
            folder=folders[0],
            name=newest.path.name,
            iteration=newest.iteration,
            command='--resume' if command is None else f'{command} --resume',
        )


def _verify(path: Path) -> catalog.GoodCheckpoint:
    try:
        return catalog.verify_checkpoint(path)
    except loading.BadCheckpoint as error:
        found = catalog.find_checkpoint(path.resolve().parent).found
        text = _('{error}. There is no good one in its folder.', error=error)
        if found is not None:
            text = _(
                '{error}. The newest good one there is of iteration '
                '{iteration}: --resume-from {path}',
                error=error,
                iteration=found.iteration,
                path=shlex.quote(str(found.path)),
            )
        raise CheckpointError(text) from error


# Options for one start; some may have no value.
_STARTS = (
    '--resume',
    '--resume-from',
    '--load-from',
    '--before-iter',
    '--allow-partial',
)
_FLAGS = ('--force',)


# Set by `mmstable dist-train`: its command, without options of the run.
DIST_TRAIN = 'MMSTABLE_DIST_TRAIN'


def resume_command(
    program: Sequence[str], argv: Sequence[str], work_dir: str
) -> str:
    """A command line without what it says about where to start.

    Args:
        program (Sequence[str]): What was called, e.g.
            ``['python', 'tools/train.py']``.
        argv (Sequence[str]): Its arguments.
        work_dir (str): Where the run is.
    """
    kept = with_work_dir(without_start(argv), work_dir)
    if os.environ.get(DIST_TRAIN):
        # It names the config and the launcher itself.
        program = shlex.split(os.environ[DIST_TRAIN])
        kept = without_option(kept[1:], '--launcher')
    return shell_command([*program, *kept])


def with_work_dir(argv: Sequence[str], work_dir: str) -> list[str]:
    """Arguments that name the work dir."""
    if any(word.startswith('--work-dir') for word in argv):
        return list(argv)
    return [*argv, '--work-dir', work_dir]


def without_start(argv: Sequence[str]) -> list[str]:
    """Arguments without what they say about where to start."""
    return without_option([w for w in argv if w not in _FLAGS], *_STARTS)


def without_option(argv: Sequence[str], *options: str) -> list[str]:
    """Arguments without some options and their values."""
    kept: list[str] = []
    skipping = False
    for word in argv:
        if skipping and not word.startswith('-'):
            skipping = False
            continue
        skipping = word in options
        if not skipping and word.partition('=')[0] not in options:
            kept.append(word)
    return kept


def program_of(path: str) -> list[str]:
    """How to call the program that trains.

    Args:
        path (str): Its ``sys.argv[0]``.
    """
    if path.endswith(os.path.join('mmstable', '__main__.py')):
        return ['python', '-m', 'mmstable', 'train']
    if path.endswith('.py'):
        return ['python', path]
    return ['mmstable', 'train']


def own_program(program: Sequence[str], path: str) -> list[str]:
    """The same, to be started by this process.

    Args:
        program (Sequence[str]): What :func:`program_of` gave.
        path (str): The ``sys.argv[0]`` of this process.
    """
    first, *rest = program
    # Not those of the path, which may belong to another Python.
    if first == 'python':
        return [sys.executable, *rest]
    return [sys.executable, path, *rest]


def launch_command(
    launcher: str, env: Mapping[str, str], program: Sequence[str]
) -> list[str]:
    """A program, with what starts it on all ranks.

    Args:
        launcher (str): 'none', 'pytorch', 'slurm' or 'mpi'.
        env (Mapping): The variables that the launcher has set.
        program (Sequence[str]): The program.
    """
    if launcher == 'pytorch':
        command = ['torchrun']
        nodes = env.get('GROUP_WORLD_SIZE', '1')
        if nodes != '1':
            # On each machine with its own number.
            command += [
                f'--nnodes={nodes}',
                f'--node_rank={env.get("GROUP_RANK", "0")}',
                f'--master_addr={env.get("MASTER_ADDR", "127.0.0.1")}',
            ]
        per_node = env.get('LOCAL_WORLD_SIZE') or env.get('WORLD_SIZE', '1')
        command.append(f'--nproc_per_node={per_node}')
        command.append(f'--master_port={env.get("MASTER_PORT", "29500")}')
        # It starts Python by itself.
        if program[0] == 'python':
            return [*command, *program[1:]]
        return [*command, '--no-python', *program]
    if launcher == 'slurm':
        tasks = env.get('SLURM_NTASKS', '1')
        nodes = env.get('SLURM_NNODES', '1')
        starter = ['srun', f'--ntasks={tasks}', f'--nodes={nodes}']
        return [*starter, '--kill-on-bad-exit=1', *program]
    if launcher == 'mpi':
        count = env.get('OMPI_COMM_WORLD_SIZE', '1')
        return ['mpirun', '-np', count, *program]
    return list(program)
