"""``mmstable profile``: from a config to a table and a trace."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS, RUNNERS, init_default_scope
from mmengine.runner import Runner

from mmstable.checkpoint.atomic_file import replace_text
from mmstable.cli import config_edits as edits
from mmstable.cli.command import say as say_for
from mmstable.cli.config_checks import check_work_dir
from mmstable.cli.config_file import load_config
from mmstable.cli.config_mistakes import explain_mistake
from mmstable.cli.config_options import read_options
from mmstable.cli.legacy_config import modernize
from mmstable.cli.profile_table import as_dict, print_profile
from mmstable.cli.profile_trace import TRACED, Measured, TraceHook
from mmstable.cli.texts import NO_FOLDER
from mmstable.distributed.join_ranks import join_ranks
from mmstable.distributed.launchers import rank_of
from mmstable.errors import UsageError
from mmstable.events.run_header import device_of
from mmstable.hooks import EmergencyCheckpointHook, IterProfileHook
from mmstable.messages import _

_TRACE = 'trace.json'
# An interval so long that there is no second sample.
_ONCE = 10**9
# They write checkpoints, or measure as well.
_LEFT_OUT = (CheckpointHook, EmergencyCheckpointHook, IterProfileHook)


def profile(args: argparse.Namespace) -> int:
    """Measure a few iterations, and return the exit code."""
    if args.local_rank is not None:
        os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    is_first = rank_of(args.launcher) == 0
    cfg = _load(args)
    folder = Path(cfg.pop('work_dir'))
    is_new = not folder.exists()
    check_work_dir(str(folder))
    _check_folder_of(args.json)
    hook = IterProfileHook(
        interval=_ONCE,
        iterations=args.iters,
        begin=args.warmup,
        depth=args.depth,
    )
    trace = folder / _TRACE
    if is_first:
        counts = dict(warmup=args.warmup, iters=args.iters, traced=TRACED)
        say_for(
            'profile',
            _(
                'training {warmup} iterations to warm up, {iters} to measure '
                'and {traced} to trace, in a temporary folder',
                **counts,
            ),
        )
    try:
        runner = _train(cfg, hook, trace if is_first else None)
    except BaseException:
        if is_new:
            # Empty, or not ours to remove.
            with suppress(OSError):
                folder.rmdir()
        raise
    sample = hook.sample
    if sample is None:
        raise UsageError(
            _(
                'training ended before all iterations were measured; is '
                'there data, and does the train loop train?'
            )
        )
    if not is_first:
        return 0
    device = device_of(runner.model)
    print_profile(sample, hook.causes, device.type != 'cpu', trace)
    if args.json is not None:
        content = json.dumps(as_dict(sample, hook.causes), indent=1)
        replace_text(Path(args.json), content + '\n')
    return 0


def _load(args: argparse.Namespace) -> Config:
    options = read_options(args.cfg_options or [])
    cfg = load_config(args.config)
    cfg = modernize(cfg, options, lambda text: say_for('profile', text))
    edits.set_work_dir(cfg, None, args.config)
    if args.work_dir is None:
        cfg.work_dir = os.path.join(cfg.work_dir, 'profile')
    else:
        cfg.work_dir = args.work_dir
    cfg.launcher = args.launcher
    edits.drop_absent_hooks(cfg)
    edits.disable_validation(cfg)
    cfg.test_cfg = cfg.test_dataloader = cfg.test_evaluator = None
    _shorten(cfg, args.warmup + args.iters + TRACED + 1)
    _leave_nothing_behind(cfg)
    return cfg


def _shorten(cfg: Config, iterations: int) -> None:
    """Let the run be long enough; it ends when all is measured."""
    loop = cfg.get('train_cfg')
    if not isinstance(loop, dict):
        raise UsageError(
            _(
                'the config has no `train_cfg`, so there is no training to '
                'measure'
            )
        )
    for key in ('max_iters', 'max_epochs'):
        if key in loop:
            loop[key] = max(int(loop[key]), iterations)


def _leave_nothing_behind(cfg: Config) -> None:
    """Remove what loads or saves checkpoints, or writes to dashboards."""
    cfg.load_from, cfg.resume = None, False
    cfg.log_level = 'ERROR'
    cfg.visualizer = dict(type='Visualizer', vis_backends=[])
    # As the runner does: names in the config are looked up there.
    init_default_scope(cfg.get('default_scope') or 'mmengine')
    hooks = cfg.get('default_hooks') or {}
    for name in [n for n, hook in hooks.items() if _is_left_out(hook)]:
        hooks.pop(name)
    # mmengine adds one where there is none.
    hooks['checkpoint'] = None
    cfg.default_hooks = hooks
    custom = cfg.get('custom_hooks') or []
    cfg.custom_hooks = [hook for hook in custom if not _is_left_out(hook)]


def _is_left_out(hook: Any) -> bool:
    kind = hook.get('type') if isinstance(hook, dict) else type(hook)
    if isinstance(kind, str):
        # An unknown name is reported when the run is built.
        kind = HOOKS.get(kind)
    return isinstance(kind, type) and issubclass(kind, _LEFT_OUT)


def _check_folder_of(file: str | None) -> None:
    folder = os.path.dirname(file or '')
    if not os.path.isdir(folder or '.'):
        raise UsageError(_(NO_FOLDER, folder=folder))


def _train(cfg: Config, hook: IterProfileHook, trace: Path | None) -> Runner:
    note = join_ranks(cfg)
    if note is not None and trace is not None:
        say_for('profile', note)
    with tempfile.TemporaryDirectory(prefix='mmstable_profile_') as scratch:
        cfg.work_dir = scratch
        try:
            runner = _build(cfg)
            runner.register_hook(hook)
            runner.register_hook(TraceHook(hook, trace))
            runner.train()
        except Measured:
            pass
        except Exception as error:
            mistake = explain_mistake(error)
            if mistake is None:
                raise
            raise UsageError(mistake) from error
    return runner


def _build(cfg: Config) -> Runner:
    if cfg.get('runner_type') is None:
        return Runner.from_cfg(cfg)
    return RUNNERS.build(cfg)
