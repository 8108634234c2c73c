"""Tell mistakes in a config from faults in the code that it starts."""

from __future__ import annotations

import inspect
import logging
import re
import traceback
from types import FrameType
from typing import Any

from mmengine import registry as root
from mmengine.config import Config
from mmengine.registry import Registry
from mmengine.runner import (
    EpochBasedTrainLoop,
    IterBasedTrainLoop,
    LogProcessor,
    Runner,
    ValLoop,
)
from torch.utils.data import DataLoader

from mmstable.cli.suggest import did_you_mean
from mmstable.messages import _
from mmstable.preflight.arguments import arguments_of
from mmstable.settings import one_of

_UNREGISTERED = re.compile(r'(\S+) is not in the (?:(\S+)::)?(.+?) registry')
_UNEXPECTED = re.compile("unexpected keyword argument '(.+?)'")
# Their classes raise for what they are given, not for faults of their own.
_KNOWN = ('mmengine.', 'mmstable.', 'torch.')
# What builds a run from a config, besides `build_from_cfg`.
_RUNNERS = ('mmengine.runner.runner', 'mmengine.runner._flexible_runner')
# What these call with the arguments of a dict, without a registry.
_BUILT_BY: dict[str, tuple[Any, ...]] = {
    '__init__': (Runner.set_randomness,),
    'build_dataloader': (DataLoader,),
    'build_log_processor': (LogProcessor,),
    'build_train_loop': (EpochBasedTrainLoop, IterBasedTrainLoop),
    'build_val_loop': (ValLoop,),
}
_NO_TYPE = re.compile(r'must contain the key "type", but got (.*)', re.S)


def explain_mistake(error: Exception) -> str | None:
    """What is wrong with the config, in one line.

    Args:
        error (Exception): What came out of building or training.

    Returns:
        str or None: None if the config is not to blame.
    """
    if isinstance(error, UnicodeError):
        # A ValueError, but about texts that no config has.
        return None
    if isinstance(error, KeyError):
        return _explain_key_error(error)
    if isinstance(error, TypeError) and _refused_arguments(error):
        hint = _suggest_argument(error)
        return _(
            'the config has a wrong argument: {error}.{hint}',
            error=error,
            hint=hint,
        )
    if not isinstance(error, (TypeError, ValueError)):
        return None
    if _is_ours(error) or _is_of_runner(error):
        return _('the config has a wrong setting: {error}', error=error)
    return _explain_value(error)


def check_log_level(cfg: Config) -> None:
    """Refuse a level that there is not, before mmengine does.

    That keeps a lock when it fails, and threads of a later run in the same
    process would wait for it.
    """
    level = cfg.get('log_level', 'INFO')
    if isinstance(level, str):
        one_of('', 'log_level', level, list(logging._nameToLevel))


def _explain_key_error(error: KeyError) -> str | None:
    text = str(error.args[0]) if error.args else ''
    found = _NO_TYPE.search(text)
    if found is not None:
        what = found.group(1).rpartition('\n')[0] or found.group(1)
        return _(
            '`{path}` has no `type`, so nothing can be built from it.{hint}',
            path=what,
            hint='',
        )
    found = _UNREGISTERED.search(text)
    if found is None:
        return None
    name, scope, kind = found.groups()
    return _unregistered(kind, name.strip('\'"'), scope or 'mmengine')


def _explain_value(error: Exception) -> str | None:
    """What a class of mmengine or torch does not take, if it is that."""
    if 'end should be larger than begin' in str(error):
        return _(
            'param_scheduler: {error}. Is the warm-up longer than the '
            'training (train_cfg)?',
            error=error,
        )
    frames = _frames(error)
    for frame in frames:
        # mmengine goes on without a class that it has not found.
        if frame.f_locals.get('optimizer_cls', '') is None:
            name = frame.f_locals['self'].optimizer_cfg['type']
            return _unregistered('optimizer', name, 'mmengine')
    built = _class_that_refused(frames)
    if built is None:
        return None
    return _(
        'the config has a wrong value for {name}: {error}',
        name=built.__name__,
        error=error,
    )


def _class_that_refused(frames: list[FrameType]) -> type | None:
    """The class whose own ``__init__`` has raised, if we know that class."""
    built = None
    for frame in frames:
        if frame.f_code.co_name == 'build_from_cfg':
            built = frame.f_locals.get('obj_cls')
        elif frame.f_code.co_name == 'build_dataloader':
            built = DataLoader
        elif frame.f_code.co_name != '__init__' or not (
            frame.f_globals.get('__name__', '').startswith(_KNOWN)
        ):
            built = None
    return built if inspect.isclass(built) else None


def _unregistered(kind: str, name: str, scope: str) -> str:
    hint = did_you_mean(name, _registered_names(kind))
    return _(
        "the config asks for the {kind} '{name}', which is not registered in "
        "scope '{scope}'.{hint}",
        kind=kind,
        name=name,
        scope=scope,
        hint=hint,
    )


def _registered_names(kind: str) -> set[str]:
    names: set[str] = set()
    for value in vars(root).values():
        if isinstance(value, Registry) and value.name == kind:
            names |= _names_of(value)
    return names


def _names_of(registry: Registry) -> set[str]:
    names = set(registry.module_dict)
    for child in registry.children.values():
        names |= {f'{child.scope}.{name}' for name in _names_of(child)}
        names |= set(child.module_dict)
    return names


def _frames(error: Exception) -> list[FrameType]:
    return [frame for frame, __ in traceback.walk_tb(error.__traceback__)]


def _is_ours(error: Exception) -> bool:
    """Whether mmstable itself has refused a setting."""
    modules = [f.f_globals.get('__name__', '') for f in _frames(error)]
    return bool(modules) and modules[-1].startswith('mmstable.')


def _is_of_runner(error: Exception) -> bool:
    """Whether mmengine's runner itself has refused what it was to build."""
    return any(_builds_run(frame) for frame in _frames(error)[-1:])


def _builds_run(frame: FrameType) -> bool:
    name = frame.f_code.co_name
    return frame.f_globals.get('__name__') in _RUNNERS and (
        name == '__init__' or name.startswith('build_')
    )


def _refused_arguments(error: TypeError) -> bool:
    """Whether the call itself failed, rather than something inside it.

    Also if a class has passed an argument on to its base.
    """
    is_unexpected = _UNEXPECTED.search(str(error)) is not None
    if is_unexpected and _is_of_runner(error):
        return True
    names = [frame.f_code.co_name for frame in _frames(error)]
    while names and names[-1] == '__init__' and is_unexpected:
        names.pop()
    return bool(names) and names[-1] == 'build_from_cfg'


def _suggest_argument(error: TypeError) -> str:
    """What a misspelt argument was meant to be, if that can be told."""
    found = _UNEXPECTED.search(str(error))
    if found is None:
        return ''
    known: set[str] = set()
    for frame in _frames(error):
        if frame.f_code.co_name == 'build_from_cfg':
            known = arguments_of(frame.f_locals.get('obj_cls'))
        elif _builds_run(frame):
            built = _BUILT_BY.get(frame.f_code.co_name, ())
            known = {name for one in built for name in arguments_of(one)}
    return did_you_mean(found.group(1), known - {'self'})
