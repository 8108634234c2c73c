"""Look a config through before anything is built from it.

mmengine would refuse some of it, too, but after it has printed the whole
config, and with a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence

from mmengine.config import Config

from mmstable.cli.base_files import plain_settings
from mmstable.cli.check_text import as_short_text, as_text
from mmstable.cli.config_file import load_config
from mmstable.cli.config_options import read_options
from mmstable.cli.legacy_config import modernize
from mmstable.cli.resume_command import launch_command, program_of
from mmstable.distributed.launchers import rank_of, ranks_of
from mmstable.errors import CheckFailed, UsageError
from mmstable.finding import Finding, Severity
from mmstable.messages import _
from mmstable.messages.shell_command import shell_command
from mmstable.preflight.check_config import (
    check_config,
    ignored_rules,
    impossible,
)
from mmstable.preflight.config_source import ConfigSource
from mmstable.preflight.config_view import ConfigView
from mmstable.preflight.machine import Machine
from mmstable.preflight.rule import RULES

# What would be said twice: a run ends with it, if it needs that file.
_TOLD_LATER = {('missing_weights', 'load_from')}

# Bytes that a run writes before it trains: its config, and its log.
_ROOM_AT_START = 1 << 17


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
        raise UsageError(
            _(
                'the config has no train_cfg, train_dataloader and '
                'optim_wrapper: there is nothing to train.'
            )
        )
    try:
        ignored_rules(view)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    if args.check:
        _check_all(view, args)
    elif rank_of(args.launcher) == 0:
        _tell_worst(view, args, say)


def check_work_dir(path: str) -> None:
    """Make the folder of a run, or say why that is impossible."""
    try:
        os.makedirs(path, exist_ok=True)
        if os.access(path, os.W_OK | os.X_OK):
            _try_to_write(path)
            return
        reason = _('it is not writable')
    except OSError as error:
        reason = error.strerror or str(error)
    raise UsageError(
        _(
            "the work dir '{path}' cannot be used: {error}.",
            path=path,
            error=reason,
        )
    )


def _try_to_write(folder: str) -> None:
    # Really: what a disk says to have may be kept for others, or be limited.
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_ROOM_AT_START))


def _check_all(view: ConfigView, args: argparse.Namespace) -> None:
    """What ``mmstable check`` does; every rank does it, one tells."""
    options = [word.partition('=')[0] for word in args.cfg_options or []]
    findings = check_config(view, ConfigSource(args.config, tuple(options)))
    if rank_of(args.launcher) == 0:
        for line in as_text(args.config, findings):
            print(line, file=sys.stderr)
    errors = [one for one in findings if one.severity is Severity.ERROR]
    if errors:
        raise CheckFailed(
            _(
                '--check: {errors:error|errors} in the config, nothing is '
                'trained',
                errors=len(errors),
            )
        )


def _tell_worst(
    view: ConfigView, args: argparse.Namespace, say: Callable[[str], None]
) -> None:
    told = [
        one
        for one in check_config(view)
        if one.id in RULES
        and RULES[one.id].at_start
        and one.severity is not Severity.HINT
        and (one.id, one.path) not in _TOLD_LATER
    ]
    for line in as_short_text(told):
        say(line)
    if told:
        say(_where_to_read_more(view, args, told))


def _where_to_read_more(
    view: ConfigView, args: argparse.Namespace, told: Sequence[Finding]
) -> str:
    """The command that explains findings.

    ``mmstable check`` knows nothing of what options of ``mmstable train`` do
    to a config. What is only then to be found, only that command can show.
    """
    options = read_options(args.cfg_options or [])
    cfg = modernize(load_config(args.config), options, lambda text: None)
    plain = ConfigView(
        plain_settings(cfg), view.machine, view.ranks, args.config
    )
    shown = {(one.id, one.path) for one in check_config(plain)}
    if all((one.id, one.path) in shown for one in told):
        command = ['mmstable', 'check', args.config]
        if view.ranks != max(1, view.machine.gpus):
            command += ['--ranks', str(view.ranks)]
        if args.cfg_options:
            command += ['--cfg-options', *args.cfg_options]
        return _(
            'why, and how to mend it: `{command}`',
            command=shell_command(command),
        )
    program = program_of(sys.argv[0])
    command = launch_command(args.launcher, os.environ, program)
    command += [*args.words, '--check']
    return _(
        'why, and how to mend it, before it trains: `{command}`',
        command=shell_command(command),
    )
