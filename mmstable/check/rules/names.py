"""Rules about unknown keys, classes and arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from mmengine import registry as root
from mmengine.hooks import Hook
from mmengine.runner import FlexibleRunner, LogProcessor, Runner
from torch.utils.data import DataLoader

from mmstable.check.config_tree import (
    DEFAULT_HOOKS,
    LOADERS,
    ConfigView,
    Node,
)
from mmstable.check.registry import (
    arguments_of,
    class_of,
    is_installed,
    missing_packages,
    names_in,
    refused_by,
)
from mmstable.check.rule import Violation, error, warning
from mmstable.check.source import sets_in_vain
from mmstable.legacy.draft import OLD_KEYS, old_keys_of
from mmstable.messages import _
from mmstable.settings import DID_YOU_MEAN, did_you_mean, nearest, overriding

# Top-level keys that a runner or a train script reads besides the arguments
# of the runner.
_ALSO_READ = (
    'activation_checkpointing',
    'compile',
    'custom_imports',
    'efficient_conv_bn_eval',
    'find_unused_parameters',
    'model_wrapper_cfg',
    'runner_type',
    'stability_checks',
    'sync_bn',
)
# High enough to accept variables such as `dataset_train`.
_LIKENESS = 0.88
# Below these keys, a str that looks like a number is meant to be one.
_NUMERIC = (
    'optim_wrapper',
    'param_scheduler',
    'train_cfg',
    'val_cfg',
    'test_cfg',
    'randomness',
    *LOADERS,
)
# Arguments of the user's own classes are not checked.
_FOREIGN = {'dataset', 'collate_fn', 'sampler', 'batch_sampler'}
_NUMBER = re.compile(r'[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?', re.I)


@cache
def top_level_keys() -> frozenset[str]:
    """Return the keys that are read at the top of a config."""
    runners = map(inspect.signature, (Runner, FlexibleRunner))
    return frozenset(_ALSO_READ).union(*(one.parameters for one in runners))


@warning(
    what='`{key}` is a key of mmcv 1.x.',
    why='mmengine silently ignores keys of mmcv 1.x.',
    fix='translate the config with `mmstable upgrade CONFIG -o NEW.py`; '
    '`mmstable train` does so automatically',
)
def legacy_key(view: ConfigView) -> Iterator[Violation]:
    """Find keys of mmcv 1.x, which mmengine silently ignores."""
    for key in old_keys_of(view.written):
        yield Violation(key, key=key)


@warning(
    what='unknown key `{key}` is ignored; did you mean `{near}`?',
    why='mmengine silently ignores a misspelt top-level key.',
)
def unknown_key(view: ConfigView) -> Iterator[Violation]:
    """Find unknown keys that look like a known one."""
    known = top_level_keys()
    for key, value in view.settings.items():
        if key in known or key in OLD_KEYS or key.startswith('_'):
            continue
        near = next(iter(nearest(key, known, _LIKENESS)), '')
        if not near or value is None:
            continue
        # If the known key is set as well, the other one is a variable; unless
        # only a base sets the known key, and this file misspells it.
        if view.get(near) is None or sets_in_vain(view.file, key, near):
            change = dict(_merged(near, value, view.get(near)))
            # No change: the known key has the same value.
            if change:
                yield Violation(key, change, key=key, near=near)


@error(
    is_fatal=True,
    what='`{path}` is the string {text!r}: write {text} without quotes{note}.',
    why='Training fails when this value is first used as a number.',
)
def text_for_number(view: ConfigView) -> Iterator[Violation]:
    """Find strings in place of numbers, as YAML reads 1e-4."""
    is_yaml = view.file.endswith(('.yaml', '.yml'))
    for path, value in view.values.items():
        if not isinstance(value, str) or not _NUMBER.fullmatch(value):
            continue
        section, *names = path.split('.')
        if section in _NUMERIC and names and _FOREIGN.isdisjoint(names):
            is_whole = value.lstrip('+-').isdigit()
            right = int(value) if is_whole else float(value)
            note = ''
            if is_yaml and 'e' in value.lower():
                note = _(' (YAML reads 1e-4 as a string; write 1.0e-4)')
            yield Violation(path, {path: right}, text=value, note=note)


@error(
    is_fatal=True,
    what='`{path}` has no `type`, so it cannot be built.{hint}',
    why='mmengine needs a `type`; often the name of the hook is misspelt.',
    fix='add a `type`, or correct the name',
)
def hook_without_type(view: ConfigView) -> Iterator[Violation]:
    """Find default hooks without a class."""
    hooks = view.part('default_hooks').settings
    for name, hook in hooks.items():
        if isinstance(hook, dict) and 'type' not in hook:
            near = nearest(name, sorted({*DEFAULT_HOOKS, *hooks} - {name}))
            hint = _(DID_YOU_MEAN, words=near) if near else ''
            yield Violation(f'default_hooks.{name}', hint=hint)


@error(
    is_fatal=True,
    what='`{path}` is {value!r}, but `custom_hooks` must be a list of dicts '
    'with a `type`.',
    why='mmengine cannot build a hook from anything else.',
    fix="write custom_hooks = [dict(type='...'), ...]",
)
def custom_hooks_no_dicts(view: ConfigView) -> Iterator[Violation]:
    """Find a dict in place of the list, strings, and dicts without type."""
    hooks = view.get('custom_hooks')
    if hooks is not None and not isinstance(hooks, (list, tuple)):
        yield Violation('custom_hooks', value=hooks)
        return
    for number, hook in enumerate(hooks or ()):
        has_type = isinstance(hook, dict) and 'type' in hook
        if not has_type and not isinstance(hook, Hook):
            yield Violation(f'custom_hooks.{number}', value=hook)


def _merged(path: str, value: Any, base: Any) -> Iterator[tuple[str, Any]]:
    """Yield the differences after a value was merged into that of a base."""
    both = isinstance(value, dict) and isinstance(base, dict)
    # A name with a dot cannot be part of a path.
    if both and not any(n == '_delete_' or '.' in str(n) for n in value):
        for name, inner in value.items():
            yield from _merged(f'{path}.{name}', inner, base.get(name))
        return
    if both:
        kept = {} if value.get('_delete_') else base
        value = {**kept, **overriding(value)}
    if value != base:
        yield path, value


@warning(
    at_start=False,
    what='not installed here: {names}.',
    why='Their classes cannot be checked, nor the config trained here.',
    fix='install them, or run the check on the training machine',
)
def missing_package(view: ConfigView) -> Iterator[Violation]:
    """Find packages that are not installed here.

    This depends on the machine, not on the config: without the packages of
    the published configs it is in 99 % of them. Rules that need a class find
    nothing then.
    """
    names = missing_packages(view.settings)
    if names:
        yield Violation('default_scope', names=names)


@error(
    what='`{name}` cannot be imported: {error}',
    why='Training cannot start without the modules of `custom_imports`.',
    fix='install the package, correct the name, or start in its folder',
)
def missing_import(view: ConfigView) -> Iterator[Violation]:
    """Find modules of ``custom_imports`` that cannot be imported."""
    listed = view.get('custom_imports.imports') or []
    for name in [listed] if isinstance(listed, str) else listed:
        try:
            import_module(name)
        except ImportError as reason:
            yield Violation('custom_imports', name=name, error=reason)


# How like a known name a typo is.
TYPO = 0.8
# Elsewhere, custom code may build the objects in its own way.
_CHECKED = (root.MODELS, root.OPTIM_WRAPPERS, root.HOOKS)
_ALSO_CHECKED = ('train_cfg', *(f'{name}.dataset' for name in LOADERS))


@error(
    at_start=False,
    what='not registered: {names}.',
    why='mmengine cannot build an object of an unregistered type.',
    fix='correct the name, or add its module to `custom_imports`',
)
def unknown_type(view: ConfigView) -> Iterator[Violation]:
    """Find classes that are not registered, all in one finding."""
    if not is_installed(view.get('default_scope') or 'mmengine'):
        return
    wrong = {
        f'{one.path}.type': one.node['type']
        for one in places(view)
        if (one.registry in _CHECKED or one.path in _ALSO_CHECKED)
        and isinstance(one.node, dict)
        and isinstance(one.node.get('type'), str)
        and class_of(view, one.registry, one.node) is None
        and not missing_packages({'type': one.node['type']})
        # Otherwise `misspelt_type` suggests a name.
        and not nearest(one.node['type'], names_in(one.registry), TYPO)
    }
    if wrong:
        names = sorted(set(wrong.values()))
        yield Violation(next(iter(wrong)), names=names)


# A typo is nearer than this; `norm_cfg` is not a typo of `init_cfg`.
_ARGUMENT_LIKENESS = 0.85
# Keys that mmengine removes from a dict before it builds the object.
_TAKEN = ('type', '_scope_')
_OF_WRAPPERS = ('constructor', 'paramwise_cfg')
_OF_SCHEDULERS = ('convert_to_iter_based',)
_OF_LOADERS = ('num_batch_per_epoch', 'disable_subprocess_warning')
# A custom runner may build data loaders in its own way.
_RUNNERS = (None, 'Runner', 'FlexibleRunner')


class _Place(NamedTuple):
    """A dict that mmengine builds an object from.

    Args:
        path (str): Its path in the config.
        node (Any): The dict.
        registry (Registry, optional): Registry of its class; None if it is
            built without a registry.
        taken (tuple[str, ...]): Keys that mmengine removes before.
            Defaults to ().
        built (Any): Class or function of a dict without ``type``; None if it
            needs a ``type``. Defaults to None.
    """

    path: str
    node: Any
    registry: root.Registry | None
    taken: tuple[str, ...] = ()
    built: Any = None


@error(
    at_start=False,
    what='{kind} has no argument `{name}`.{hint}',
    why='Building the object fails; a checkpoint hook fails only when it '
    'saves for the first time, hours later.',
    fix='correct the name, or remove it',
)
def unknown_argument(view: ConfigView) -> Iterator[Violation]:
    """Find arguments that the class of a dict does not have."""
    for path, node, registry, taken, default in places(view):
        if not isinstance(node, dict):
            continue
        built = default
        if 'type' in node:
            built = class_of(view, registry, node) if registry else None
        if built is None:
            continue
        given = [name for name in node if name not in (*_TAKEN, *taken)]
        known = {'type', *arguments_of(built), *taken}
        known -= {'self', 'args', 'kwargs'}
        for name in refused_by(built, given):
            yield Violation(
                f'{path}.{name}',
                _renamed(path, node, name, known),
                kind=getattr(built, '__name__', built),
                name=name,
                hint=did_you_mean(name, known),
            )


def _renamed(
    path: str, node: Node, name: str, known: set[str]
) -> dict[str, Any]:
    """Return the dict with the likely name; nothing if there are several."""
    near = nearest(name, known - {*node}, _ARGUMENT_LIKENESS)
    if len(near) != 1:
        return {}
    return {path: {near[0] if k == name else k: v for k, v in node.items()}}


def places(view: ConfigView) -> Iterator[_Place]:
    """Yield all dicts that mmengine builds objects from."""
    # Not inside models: they build their layers in their own way.
    yield _Place('model', view.get('model'), root.MODELS)
    for name in ('train_cfg', 'val_cfg', 'test_cfg'):
        yield _Place(name, view.get(name), root.LOOPS)
    for one in view.wrappers:
        yield _Place(one.path, one.settings, root.OPTIM_WRAPPERS, _OF_WRAPPERS)
        path, optimizer = one.at('optimizer'), one.get('optimizer')
        yield _Place(path, optimizer, root.OPTIMIZERS)
    for one in view.hooks:
        yield _Place(one.path, one.settings, root.HOOKS, ('priority',))
    for one in view.evaluators:
        yield _Place(one.path, one.settings, root.METRICS)
    for one in view.schedulers:
        yield _Place(
            one.path, one.settings, root.PARAM_SCHEDULERS, _OF_SCHEDULERS
        )
    name = 'log_processor'
    registry = root.LOG_PROCESSORS
    yield _Place(name, view.get(name), registry, built=LogProcessor)
    if view.get('runner_type') in _RUNNERS:
        # The runner builds these without a registry.
        name, built = 'randomness', Runner.set_randomness
        yield _Place(name, view.get(name), None, built=built)
        for one in view.loaders:
            yield _Place(one.path, one.settings, None, _OF_LOADERS, DataLoader)
    for one in view.loaders:
        path, node = one.at('dataset'), one.get('dataset')
        yield _Place(path, node, root.DATASETS)
        while isinstance(node, dict):
            pipeline: Any = node.get('pipeline')
            is_list = isinstance(pipeline, (list, tuple))
            for number, step in enumerate(pipeline if is_list else ()):
                where = f'{path}.pipeline.{number}'
                yield _Place(where, step, root.TRANSFORMS)
            path, node = f'{path}.dataset', node.get('dataset')
            yield _Place(path, node, root.DATASETS)
