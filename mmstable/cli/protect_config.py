"""Protect a config as the command line says."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from mmengine.config import Config

from mmstable.cli.base_files import plain_settings
from mmstable.errors import UsageError
from mmstable.messages import _
from mmstable.protection.change import Protection, apply_changes
from mmstable.protection.protect import protect
from mmstable.protection.text import protection_lines


def protect_config(cfg: Config, args: argparse.Namespace) -> Protection | None:
    """Change a config, unless it shall be trained as it is.

    Args:
        cfg (Config): The config to change.
        args (argparse.Namespace): Has ``as_is``, ``preset`` and ``memory``.

    Returns:
        Protection or None: What was changed.
    """
    if args.as_is:
        _refuse_choices(args)
        return None
    protection = protection_of(cfg, args)
    apply_changes(cfg._cfg_dict, protection.changes)
    return protection


def tell_protection(
    protection: Protection | None, say: Callable[[str], None]
) -> None:
    """Tell what was changed.

    Args:
        protection (Protection, optional): What :func:`protect_config` gave.
        say (Callable): Prints a line for the user.
    """
    if protection is None:
        return
    title = _(
        'protected with preset {preset} (--as-is changes nothing):',
        preset=protection.preset,
    )
    for line in protection_lines(protection, title):
        say(line)


def protection_of(cfg: Config, args: argparse.Namespace) -> Protection:
    """What the options ask for."""
    preset = args.preset or 'default'
    if args.memory is not None and preset == 'observe_only':
        raise UsageError(
            _(
                '--memory changes training, and --preset observe_only does '
                'not: choose one of them.'
            )
        )
    return protect(plain_settings(cfg), preset, args.memory)


def _refuse_choices(args: argparse.Namespace) -> None:
    for option in ('preset', 'memory'):
        if getattr(args, option) is not None:
            raise UsageError(
                _(
                    '--as-is changes nothing: it does not go with {option}.',
                    option=f'--{option}',
                )
            )
