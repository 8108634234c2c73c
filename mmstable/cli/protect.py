"""``mmstable protect``: a protected config, for any train script."""

from __future__ import annotations

import argparse
import os

from mmengine.config import Config

from mmstable.cli.base_files import plain_settings
from mmstable.cli.command import say as say_for
from mmstable.cli.config_file import load_config_anyway
from mmstable.cli.protect_config import protection_of
from mmstable.cli.texts import OLD_CONFIG, UNCHANGED
from mmstable.cli.written_config import (
    check_target,
    relative,
    write_new_config,
)
from mmstable.errors import UsageError
from mmstable.legacy.config.keys import old_keys_of
from mmstable.messages import _
from mmstable.protection.overlay import overlay, python_overlay
from mmstable.protection.text import protection_lines


def protect(args: argparse.Namespace) -> int:
    """Write the config, and return the exit code."""
    _check_output(args)
    cfg = load_config_anyway(args.config)
    settings = plain_settings(cfg)
    if old_keys_of(settings):
        raise UsageError(_(OLD_CONFIG, path=args.config))
    protection = protection_of(cfg, args)
    title = _('protected with preset {preset}:', preset=protection.preset)
    for line in protection_lines(protection, title):
        _say(line)
    if not protection.changes:
        if not protection.strategy:
            _say(
                _(
                    "'{path}' is protected already: nothing is written.",
                    path=args.config,
                )
            )
        return 0
    folder = os.path.dirname(args.output or args.config)
    base = relative(args.config, folder)
    is_python = Config._is_lazy_import(args.config)
    write = python_overlay if is_python else overlay
    _write(args, write(settings, protection, base))
    return 0


def _check_output(args: argparse.Namespace) -> None:
    path = args.output
    if path is None:
        return
    check_target(path)
    if all(map(os.path.exists, (path, args.config))) and os.path.samefile(
        path, args.config
    ):
        raise UsageError(
            _(
                "'{path}' would inherit from itself: choose another file.",
                path=path,
            )
        )


def _write(args: argparse.Namespace, text: str) -> None:
    path = args.output
    if path is None:
        print(text, end='')
        return
    if write_new_config(path, text, args.force):
        _say(_('written to {path}', path=path))
    else:
        _say(_(UNCHANGED, path=path))


def _say(text: str) -> None:
    say_for('protect', text)
