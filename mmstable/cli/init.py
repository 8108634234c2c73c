"""``mmstable init``: a commented config to start from."""

from __future__ import annotations

import argparse
import os

from mmengine.config import Config

from mmstable.cli.command import say as say_for
from mmstable.cli.config_file import load_config_anyway
from mmstable.cli.written_config import (
    check_target,
    relative,
    write_new_config,
)
from mmstable.errors import UsageError
from mmstable.legacy.config.keys import old_keys_of
from mmstable.legacy.config.render import comment, render_setting
from mmstable.messages import say
from mmstable.messages.shell_command import shell_command

_DEMO = 'quickstart/digit-scenes_fcn_fp16.py'
# It works in a checkout, too, and with any train script.
_DEMO_BASE = f"_base_ = [__import__('mmstable').config_path('{_DEMO}')]"
_OPTIM_WRAPPER = """\
optim_wrapper = dict(
    type='mmstable.SafeAmpOptimWrapper',
    dtype='bfloat16',
    accumulative_counts=2,
    clip_grad=dict(_delete_=True, max_norm=35, norm_type=2),
)"""
_HOOKS = """\
default_hooks = dict(
    checkpoint=dict(type='mmstable.SafeCheckpointHook', max_keep_ckpts=3),
    guard=dict(
        type='mmstable.DivergenceGuardHook',
        max_rollbacks=3,
        lr_factor=0.5,
        actions=dict(spike='warn'),
    ),
)"""
_CUSTOM = """\
custom_hooks = [
    *(_base_.get('custom_hooks') or []),
    dict(type='mmstable.HeadroomHook', interval=50),
]"""
_SEED = 'randomness = dict(seed=0)'
_IGNORE = "stability_checks = dict(ignore=['stock_ema'])"


def init(args: argparse.Namespace) -> int:
    """Write the config, and return the exit code."""
    output = args.output or _beside(args.config)
    check_target(output)
    if args.config is None:
        base = _DEMO_BASE
    else:
        _check(args.config)
        path = relative(args.config, os.path.dirname(output))
        base = render_setting('_base_', [path])
    if not write_new_config(output, starter(base), args.force):
        say_for('init', say('protect.unchanged', path=output))
        return 0
    command = shell_command(['mmstable', 'train', output])
    say_for('init', say('init.written', path=output, command=command))
    return 0


def starter(base: str) -> str:
    """The text of the config, all but its base commented out.

    Args:
        base (str): The line that names its base.
    """
    blocks = [
        f'{comment(say("init.title"))}\n{base}',
        _block(say('init.optim_wrapper'), _OPTIM_WRAPPER),
        _block(say('init.default_hooks'), _HOOKS),
        _block(say('init.custom_hooks'), _CUSTOM),
        _block(say('init.randomness'), _SEED),
        _block(say('init.stability_checks'), _IGNORE),
    ]
    return '\n\n'.join(blocks) + '\n'


def _block(about: str, code: str) -> str:
    lines = [f'# {line}' for line in code.splitlines()]
    return '\n'.join([comment(about), *lines])


def _beside(config: str | None) -> str:
    if config is None:
        return 'starter.py'
    return f'{os.path.splitext(config)[0]}_stable.py'


def _check(path: str) -> None:
    cfg = load_config_anyway(path)
    if old_keys_of(cfg):
        raise UsageError(say('check_fix_file.old', path=path))
    if Config._is_lazy_import(path):
        raise UsageError(say('init.python_style', path=path))
