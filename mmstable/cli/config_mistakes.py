"""Tell mistakes in a config from faults in the code that it starts."""

from __future__ import annotations

import inspect
import re
import traceback
from types import FrameType

from mmengine import registry as root
from mmengine.registry import Registry

from mmstable.cli.suggest import did_you_mean
from mmstable.messages import say as message
from mmstable.preflight.arguments import arguments_of

_UNREGISTERED = re.compile(r'(\S+) is not in the (\S+)::(.+?) registry')
_UNEXPECTED = re.compile("unexpected keyword argument '(.+?)'")
# Their classes raise for what they are given, not for faults of their own.
_KNOWN = ('mmengine.', 'mmstable.', 'torch.')
_NO_TYPE = re.compile(r'must contain the key "type", but got (.*)', re.S)


def explain_mistake(error: Exception) -> str | None:
    """What is wrong with the config, in one line.

    Args:
        error (Exception): What came out of building or training.

    Returns:
        str or None: None if the config is not to blame.
    """
    if isinstance(error, KeyError):
        return _explain_key_error(str(error.args[0]) if error.args else '')
    if isinstance(error, TypeError) and _refused_arguments(error):
        hint = _suggest_argument(error)
        return message('mistake.argument', error=error, hint=hint)
    if isinstance(error, (TypeError, ValueError)) and _is_ours(error):
        return message('mistake.setting', error=error)
    if isinstance(error, (TypeError, ValueError)):
        return _explain_value(error)
    return None


def _explain_key_error(text: str) -> str | None:
    found = _NO_TYPE.search(text)
    if found is not None:
        what = found.group(1).rpartition('\n')[0] or found.group(1)
        return message('mistake.no_type', path=what, hint='')
    found = _UNREGISTERED.search(text)
    if found is None:
        return None
    name, scope, kind = found.groups()
    return _unregistered(kind, name.strip('\'"'), scope)


def _explain_value(error: Exception) -> str | None:
    """What a class of mmengine or torch does not take, if it is that."""
    if 'end should be larger than begin' in str(error):
        return message('mistake.warmup', error=error)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in frames:
        # mmengine goes on without a class that it has not found.
        if frame.f_locals.get('optimizer_cls', '') is None:
            name = frame.f_locals['self'].optimizer_cfg['type']
            return _unregistered('optimizer', name, 'mmengine')
    built = _class_that_refused(frames)
    if built is None:
        return None
    return message('mistake.value', name=built.__name__, error=error)


def _class_that_refused(frames: list[FrameType]) -> type | None:
    """The class whose own ``__init__`` has raised, if we know that class."""
    built = None
    for frame in frames:
        if frame.f_code.co_name == 'build_from_cfg':
            built = frame.f_locals.get('obj_cls')
        elif frame.f_code.co_name != '__init__' or not (
            frame.f_globals.get('__name__', '').startswith(_KNOWN)
        ):
            built = None
    return built if inspect.isclass(built) else None


def _unregistered(kind: str, name: str, scope: str) -> str:
    hint = did_you_mean(name, _registered_names(kind))
    return message(
        'mistake.unregistered', kind=kind, name=name, scope=scope, hint=hint
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


def _is_ours(error: Exception) -> bool:
    """Whether mmstable itself has refused a setting."""
    modules = [
        frame.f_globals.get('__name__', '')
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    return bool(modules) and modules[-1].startswith('mmstable.')


def _refused_arguments(error: TypeError) -> bool:
    """Whether the call itself failed, rather than something inside it.

    Also if a class has passed an argument on to its base.
    """
    names = [f.name for f in traceback.extract_tb(error.__traceback__)]
    while names and names[-1] == '__init__' and _UNEXPECTED.search(str(error)):
        names.pop()
    return bool(names) and names[-1] == 'build_from_cfg'


def _suggest_argument(error: TypeError) -> str:
    """What a misspelt argument was meant to be, if that can be told."""
    found = _UNEXPECTED.search(str(error))
    built = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == 'build_from_cfg':
            built = frame.f_locals.get('obj_cls')
    if found is None or built is None:
        return ''
    return did_you_mean(found.group(1), arguments_of(built))
