"""``mmstable check``: from a config to findings."""

from __future__ import annotations

import argparse
import os
from typing import Any

from mmengine.config import Config

from mmstable.cli.base_files import plain_settings
from mmstable.cli.check_fix import refuse_fix, write_fix
from mmstable.cli.check_list import rule_lines
from mmstable.cli.check_text import as_github, as_json, as_text
from mmstable.cli.command import say as say_for
from mmstable.cli.config_file import load_config_anyway
from mmstable.cli.config_options import merge_options, read_options
from mmstable.cli.finding_text import exit_code
from mmstable.cli.legacy_config import modernize
from mmstable.cli.progress import working
from mmstable.errors import UsageError
from mmstable.legacy.config.keys import old_keys_of
from mmstable.messages import _
from mmstable.preflight.check_config import check_config, ignored_rules
from mmstable.preflight.config_source import ConfigSource
from mmstable.preflight.config_view import ConfigView
from mmstable.preflight.machine import Machine
from mmstable.preflight.trial import Trial, try_out


def check(args: argparse.Namespace) -> int:
    """Check a config, and return the exit code."""
    if args.list:
        print('\n'.join(rule_lines()))
        return 0
    if args.config is None:
        raise UsageError(_('a config is missing.'))
    options = read_options(args.cfg_options or [])
    cfg = load_config_anyway(args.config)
    written = plain_settings(cfg)
    view = _view(_modern(cfg, options), args, written)
    try:
        ignored = ignored_rules(view)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    if args.fix is not None:
        refuse_fix(args, view)
    source = ConfigSource(args.config, tuple(options))
    findings = check_config(view, source)
    if args.format == 'json':
        print(as_json(args.config, findings, ignored))
    elif args.format == 'github':
        print('\n'.join(as_github(args.config, findings)))
    else:
        print('\n'.join(as_text(args.config, findings, ignored)))
    if args.fix is not None:
        write_fix(args, view)
    return exit_code(findings)


def _modern(cfg: Config, options: dict[str, Any]) -> Config:
    """The config with its options, as ``mmstable train`` would have it."""
    if old_keys_of(cfg._cfg_dict):
        return modernize(cfg, options, lambda text: say_for('check', text))
    merge_options(cfg, options)
    return cfg


def _view(
    cfg: Config, args: argparse.Namespace, written: dict[str, Any]
) -> ConfigView:
    machine = Machine.here()
    is_old = bool(old_keys_of(written))
    return ConfigView(
        plain_settings(cfg),
        machine,
        ranks=args.ranks or _ranks(machine),
        file=args.config,
        written=written if is_old else None,
        trial=_try(cfg) if args.deep else None,
    )


def _try(cfg: Config) -> Trial:
    with working(_('building the config and trying it')):
        return try_out(cfg)


def _ranks(machine: Machine) -> int:
    given = os.environ.get('WORLD_SIZE', '')
    return int(given) if given.isdigit() else max(1, machine.gpus)
