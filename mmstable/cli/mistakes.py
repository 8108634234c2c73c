"""Tell mistakes in a config from faults in the code that it starts.

mmengine refuses some of them, too, but late, and with a traceback.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from mmengine import registry as root
from mmengine.config import Config, ConfigDict
from mmengine.runner import Runner
from mmengine.runner._flexible_runner import FlexibleRunner
from torch.nn import Module

from mmstable.check.check_config import check_config
from mmstable.check.config_tree import ConfigView, walk
from mmstable.check.machine import Machine
from mmstable.check.registry import (
    class_of,
    find_class,
    missing_packages,
    names_in,
)
from mmstable.check.rule import RULES
from mmstable.check.source import ConfigSource
from mmstable.cli.check import text_lines
from mmstable.cli.command import show, usage_error
from mmstable.cli.config import plain_settings, refuse_missing
from mmstable.cli.start import launch_command, program_of
from mmstable.dist.launch import rank_of, ranks_of
from mmstable.errors import CheckFailed, MMStableError, UsageError
from mmstable.finding import Finding, Severity
from mmstable.messages import N_, _
from mmstable.messages.secrets import shell_command
from mmstable.settings import did_you_mean, one_of

# Their classes raise for what they are given, not for faults of their own.
_KNOWN = ('mmengine.', 'mmstable.', 'torch.')
# They raise for what they are given while they build a run.
_BUILDERS = (
    'mmengine.runner.runner',
    'mmengine.runner._flexible_runner',
    'mmengine.registry.build_functions',
    'torch.utils.data.dataloader',
)
# The attribute of an error that names the part.
_PART = 'mmstable_part'
# Reported twice otherwise: a run ends with it, if it needs that file.
_TOLD_LATER = {('missing_weights', 'load_from')}
_MOST_AT_START = 5
# Bytes that a run writes before it trains: its config, and its log.
_ROOM_AT_START = 1 << 17


class _Part(NamedTuple):
    """A dict of a config that a registry failed to build an object from.

    Args:
        registry (Registry): The registry.
        settings (Mapping): The dict, with the arguments that the caller adds.
    """

    registry: root.Registry
    settings: Mapping[str, Any]


@contextmanager
def _naming_parts() -> Iterator[None]:
    """Let an error say which part of the config was being built.

    The innermost part counts: a model builds its backbone.
    """
    build = root.Registry.build

    def build_named(
        self: root.Registry, cfg: Any, *args: Any, **kwargs: Any
    ) -> Any:
        try:
            return build(self, cfg, *args, **kwargs)
        except Exception as error:
            if isinstance(cfg, (Mapping, Config)):
                settings = {**(kwargs.get('default_args') or {}), **cfg}
                vars(error).setdefault(_PART, _Part(self, settings))
            raise

    root.Registry.build = build_named
    try:
        yield
    finally:
        root.Registry.build = build


@contextmanager
def explained(
    fallback: str | None = None, cfg: Mapping[str, Any] | None = None
) -> Iterator[None]:
    """Turn what goes wrong because of the config into one line.

    Args:
        fallback (str, optional): The message for everything else, with a
            field ``{error}``; None to let it out. Defaults to None.
        cfg (Mapping, optional): The config, or a part of it.
            Defaults to None.
    """
    try:
        with _naming_parts():
            yield
    except MMStableError:
        raise
    except Exception as error:
        mistake = explain_mistake(error, cfg)
        if mistake is None:
            if fallback is None:
                raise
            text = ' '.join(f'{type(error).__name__}: {error}'.split())
            mistake = _(fallback, error=text)
        raise UsageError(mistake) from error


def explain_mistake(
    error: Exception, cfg: Mapping[str, Any] | None = None
) -> str | None:
    """What is wrong with the config, in one line.

    Args:
        error (Exception): What came out of building or training.
        cfg (Mapping, optional): The config, or a part of it.
            Defaults to None.

    Returns:
        str or None: None if the config is not to blame.
    """
    # A UnicodeError is a ValueError, but about texts that no config has.
    if isinstance(error, UnicodeError) or not isinstance(
        error, (KeyError, TypeError, ValueError)
    ):
        return None
    text = str(error.args[0]) if error.args else ''
    *__, last = traceback.walk_tb(error.__traceback__)
    raised_in = last[0].f_globals.get('__name__', '')
    part = vars(error).get(_PART)
    view = ConfigView(ConfigDict(cfg or {}).to_dict(), Machine.here())
    if isinstance(error, TypeError) and 'keyword argument' in text:
        unknown = RULES['unknown_argument'].check(view)
        hints = [v.fields for v in unknown if f"'{v.fields['name']}'" in text]
        is_given = part and any(f"'{one}'" in text for one in part.settings)
        if hints or is_given:
            return _(
                'the config has a wrong argument: {error}.{hint}',
                error=text,
                hint=hints[0]['hint'] if hints else '',
            )
    parts = [part] if part else []
    if raised_in == 'inspect':
        # mmengine reads the signature of an optimizer before it builds one.
        optimizers = [one.get('optimizer') for one in view.wrappers]
        parts += [_Part(root.OPTIMIZERS, one or {}) for one in optimizers]
    for one in parts:
        mistake = _explain_part(one, text, raised_in)
        if mistake is not None:
            return mistake
    # Settings that mmengine's runner or mmstable itself has refused.
    is_ours = raised_in.startswith('mmstable.')
    if raised_in in _BUILDERS or (is_ours and not isinstance(error, KeyError)):
        return _('the config has a wrong setting: {error}', error=text)
    return None


def _explain_part(part: _Part, text: str, raised_in: str) -> str | None:
    registry, settings = part
    begin, end = settings.get('begin', 0), settings.get('end')
    if registry.root is root.PARAM_SCHEDULERS and (
        isinstance(begin, int) and isinstance(end, int) and end <= begin
    ):
        return _(
            'param_scheduler: {error}. Is the warm-up longer than the '
            'training (train_cfg)?',
            error=text,
        )
    is_runner = registry.root is root.RUNNERS
    kind = settings.get('runner_type' if is_runner else 'type')
    current = root.DefaultScope.get_current_instance()
    scope = 'mmengine' if current is None else current.scope_name
    scope = settings.get('_scope_') or scope
    built = find_class(registry, kind, scope)
    if built is None and isinstance(kind, str):
        return _(
            "the config asks for the {kind} '{name}', which is not registered "
            "in scope '{scope}'.{hint}",
            kind=registry.name,
            name=kind,
            scope=scope,
            hint=did_you_mean(kind, names_in(registry)),
        )
    classes = inspect.getmro(built) if inspect.isclass(built) else ()
    modules = [one.__module__ for one in classes]
    # Other classes may raise for faults of their own.
    if raised_in in modules and modules[0].startswith(_KNOWN):
        return _(
            'the config has a wrong value for {name}: {error}',
            name=built.__name__,
            error=text,
        )
    return None


def build_model(cfg: Config, failed: str) -> Module:
    """Build the model as the runner would.

    Args:
        cfg (Config): The config.
        failed (str): The message if that fails, with a field ``{error}``.
    """
    settings = copy.deepcopy(cfg.get('model'))
    if not isinstance(settings, dict):
        raise usage_error('the config has no `model`.')
    if cfg.get('data_preprocessor') is not None:
        settings.setdefault('data_preprocessor', cfg.data_preprocessor)
    with explained(failed, cfg._cfg_dict):
        return root.MODELS.build(settings)


def build_runner(cfg: Config) -> Runner:
    """Build the runner that a config asks for."""
    level = cfg.get('log_level', 'INFO')
    if isinstance(level, str):
        # mmengine would keep a lock when it fails, and threads of a later
        # run in the same process would wait for it.
        one_of('', 'log_level', level, list(logging._nameToLevel))
    kind = cfg.get('runner_type')
    built = Runner if kind is None else root.RUNNERS.get(kind)
    if built is not Runner and cfg.get('env_cfg') is None:
        # FlexibleRunner.from_cfg passes on None instead of its default.
        cfg.env_cfg = dict(dist_cfg=dict(backend='nccl'))
    if built not in (Runner, FlexibleRunner):
        return root.RUNNERS.build(cfg)

    class ShortLog(built):  # type: ignore[misc, valid-type]
        """Logs the order of its hooks in one line, not two hundred."""

        def get_hooks_info(self) -> str:
            return ', '.join(type(hook).__name__ for hook in self.hooks)

    runner = ShortLog.from_cfg(cfg)
    runner.__class__ = built
    return runner


def check_start(
    cfg: Config, plain: Mapping[str, Any], args: argparse.Namespace
) -> list[str]:
    """Raise for what cannot work, and return what may go wrong, in lines.

    Args:
        cfg (Config): The config as it will be trained.
        plain (Mapping): The config as ``mmstable check`` would see it.
        args (argparse.Namespace): The options of ``mmstable train``.
    """
    view = ConfigView(
        plain_settings(cfg),
        Machine.here(),
        ranks=ranks_of(args.launcher),
        file=args.config,
    )
    try:
        findings = check_config(view, at_start=True)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    for one in findings:
        # A training does not build the test loader.
        is_for_test = one.path.startswith('test_dataloader.')
        if one.id in RULES and RULES[one.id].is_fatal and not is_for_test:
            raise UsageError(one.what)
    for path, node in walk(plain_settings(cfg)):
        absent = missing_packages({'type': node.get('type')})
        if absent and not path.startswith('test_'):
            raise refuse_missing(path, absent[0])
    # Without its package, only mmengine's classes are known.
    scope = missing_packages({'default_scope': view.get('default_scope')})
    if scope and class_of(view, root.MODELS, view.get('model')) is None:
        raise refuse_missing('model', scope[0])
    if view.get('train_cfg') is None:
        raise usage_error(
            'the config has no train_cfg, train_dataloader and '
            'optim_wrapper: there is nothing to train.'
        )
    if args.check:
        _check_all(view, args)
        return []
    return _worst(findings, view.with_settings(plain), args)


def check_work_dir(path: str) -> None:
    """Make the folder of a run, or say why that is impossible."""
    try:
        os.makedirs(path, exist_ok=True)
        if os.access(path, os.W_OK | os.X_OK):
            # Really: what a disk says to have may be kept for others, or be
            # limited.
            with tempfile.TemporaryFile(dir=path) as file:
                file.write(bytes(_ROOM_AT_START))
            return
        reason = _('it is not writable')
    except OSError as error:
        reason = error.strerror or str(error)
    raise usage_error(
        "the work dir '{path}' cannot be used: {error}.",
        path=path,
        error=reason,
    )


def _check_all(view: ConfigView, args: argparse.Namespace) -> None:
    """What ``mmstable check`` does; every rank does it, one tells."""
    options = [word.partition('=')[0] for word in args.cfg_options or []]
    findings = check_config(view, ConfigSource(args.config, tuple(options)))
    if rank_of(args.launcher) == 0:
        show(*text_lines(args.config, findings), stderr=True)
    errors = [one for one in findings if one.severity is Severity.ERROR]
    if errors:
        raise CheckFailed(
            _(
                '--check: {errors:error|errors} in the config, nothing is '
                'trained',
                errors=len(errors),
            )
        )


def _worst(
    findings: Sequence[Finding], plain: ConfigView, args: argparse.Namespace
) -> list[str]:
    told = [
        one
        for one in findings
        if one.id in RULES and (one.id, one.path) not in _TOLD_LATER
    ]
    text = N_('{severity}: {path}: {what} ({id})')
    lines = [
        _(text, **{**one.as_dict(), 'severity': one.severity.label})
        for one in told[:_MOST_AT_START]
    ]
    if len(told) > _MOST_AT_START:
        lines.append(_('and {count} more', count=len(told) - _MOST_AT_START))
    if not told or rank_of(args.launcher) != 0:
        return lines
    # `mmstable check` knows nothing of what options of `mmstable train` do to
    # a config. What is only then to be found, only that command can show.
    shown = {(one.id, one.path) for one in check_config(plain)}
    if all((one.id, one.path) in shown for one in told):
        command = ['mmstable', 'check', args.config]
        if plain.ranks != max(1, plain.machine.gpus):
            command += ['--ranks', str(plain.ranks)]
        if args.cfg_options:
            command += ['--cfg-options', *args.cfg_options]
    else:
        program = program_of(sys.argv[0])
        command = launch_command(args.launcher, os.environ, program)
        command += [*args.words, '--check']
    text = N_('for details and fixes, run: `{command}`')
    return [*lines, _(text, command=shell_command(command))]
