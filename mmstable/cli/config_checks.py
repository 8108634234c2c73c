"""Look a config through before anything is built from it.

mmengine would refuse some of it, too, but after it has printed the whole
config, and with a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from mmengine.config import Config

from mmstable.cli.base_files import plain_settings
from mmstable.cli.check_text import as_short_text, as_text
from mmstable.distributed.launchers import rank_of, ranks_of
from mmstable.errors import CheckFailed, UsageError
from mmstable.finding import Severity
from mmstable.messages import say as message
from mmstable.preflight.check_config import (
    check_config,
    ignored_rules,
    impossible,
)
from mmstable.preflight.config_source import ConfigSource
from mmstable.preflight.config_view import ConfigView
from mmstable.preflight.machine import Machine
from mmstable.preflight.rule import RULES


def check_start(
    cfg: Config, args: argparse.Namespace, say: Callable[[str], None]
) -> None:
    """Raise for what cannot work, and tell what may go wrong.

    Args:
        cfg (Config): The config as it will be trained.
        args (argparse.Namespace): The options of ``mmstable train``.
        say (Callable): Prints a line for the user.
    """
    view = ConfigView(
        plain_settings(cfg),
        Machine.here(),
        ranks=ranks_of(args.launcher),
        file=args.config,
    )
    for one in impossible(view):
        raise UsageError(one.what)
    if view.get('train_cfg') is None:
        raise UsageError(message('mistake.nothing_to_train'))
    try:
        ignored_rules(view)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    if args.check:
        _check_all(view, args)
    elif rank_of(args.launcher) == 0:
        _tell_worst(view, args.config, say)


def check_work_dir(path: str) -> None:
    """Make the folder of a run, or say why that is impossible."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
    else:
        if os.access(path, os.W_OK | os.X_OK):
            return
        reason = message('mistake.not_writable')
    raise UsageError(message('mistake.work_dir', path=path, error=reason))


def _check_all(view: ConfigView, args: argparse.Namespace) -> None:
    """What ``mmstable check`` does; every rank does it, one tells."""
    options = [word.partition('=')[0] for word in args.cfg_options or []]
    findings = check_config(view, ConfigSource(args.config, tuple(options)))
    if rank_of(args.launcher) == 0:
        for line in as_text(args.config, findings):
            print(line, file=sys.stderr)
    errors = [one for one in findings if one.severity is Severity.ERROR]
    if errors:
        raise CheckFailed(message('check_text.refused', errors=len(errors)))


def _tell_worst(
    view: ConfigView, path: str, say: Callable[[str], None]
) -> None:
    findings = [
        one
        for one in check_config(view)
        if one.id in RULES and RULES[one.id].at_start
    ]
    for line in as_short_text(path, findings):
        say(line)
