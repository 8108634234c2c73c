"""Keys that nobody reads, and values that nobody can use."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import FlexibleRunner, Runner

from mmstable.finding import Severity
from mmstable.legacy.config.keys import OLD_KEYS, old_keys_of
from mmstable.messages import _
from mmstable.preflight.config_source import sets_in_vain
from mmstable.preflight.config_view import (
    DEFAULT_HOOKS,
    LOADERS,
    ConfigView,
)
from mmstable.preflight.rule import Hit, rule
from mmstable.settings import DID_YOU_MEAN, nearest, overriding

# What a runner or a train script reads at the top of a config, besides the
# arguments of the runner.
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
# High enough for variables as `dataset_train` or `val_evaluators_all`.
_LIKENESS = 0.88
# Everything below them that looks like a number is meant to be one.
_NUMERIC = (
    'optim_wrapper',
    'param_scheduler',
    'train_cfg',
    'val_cfg',
    'test_cfg',
    'randomness',
    *LOADERS,
)
# Except for what the user's own classes get.
_FOREIGN = ('dataset', 'collate_fn', 'sampler', 'batch_sampler')
_NUMBER = re.compile(r'[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?', re.I)


@cache
def top_level_keys() -> frozenset[str]:
    """What is read at the top of a config."""
    known = [*inspect.signature(Runner).parameters]
    known += inspect.signature(FlexibleRunner).parameters
    return frozenset([*known, *_ALSO_READ])


@rule('legacy_key', Severity.ERROR)
def legacy_key(view: ConfigView) -> Iterator[Hit]:
    """Keys of mmcv 1.x, which mmengine ignores in silence."""
    for key in old_keys_of(view.written):
        yield Hit(key, {'key': key})


@rule('unknown_key', Severity.WARNING)
def unknown_key(view: ConfigView) -> Iterator[Hit]:
    """Keys that nobody reads, and that look like one that is read."""
    known = top_level_keys()
    for key, value in view.settings.items():
        if key in known or key in OLD_KEYS or key.startswith('_'):
            continue
        near = nearest(key, known, _LIKENESS)[:1]
        if not near or value is None:
            continue
        # Set as well, it is no slip but a variable; unless only a base has
        # set it, and the slip is in the file that should change that.
        if view.get(near[0]) is None or sets_in_vain(view.file, key, near[0]):
            change = dict(_merged(near[0], value, view.get(near[0])))
            # Nothing to change if the right one says the same.
            if change:
                yield Hit(key, {'key': key, 'near': near[0]}, change)


@rule('text_for_number', Severity.ERROR, refuses=True)
def text_for_number(view: ConfigView) -> Iterator[Hit]:
    """Texts in place of numbers, as YAML makes them of 1e-4."""
    is_yaml = view.file.endswith(('.yaml', '.yml'))
    for section in _NUMERIC:
        for path, value in _values(section, view.get(section)):
            if isinstance(value, str) and _NUMBER.fullmatch(value):
                has_exponent = is_yaml and 'e' in value.lower()
                note = (
                    _(' (YAML takes 1e-4 for text, but 1.0e-4 for a number)')
                    if has_exponent
                    else ''
                )
                number = float(value) if not _is_whole(value) else int(value)
                fields = {'path': path, 'text': value, 'note': note}
                yield Hit(path, fields, {path: number})


@rule('hook_without_type', Severity.ERROR, refuses=True)
def hook_without_type(view: ConfigView) -> Iterator[Hit]:
    """Default hooks of which nobody knows what they are."""
    hooks = view.part('default_hooks').settings
    for name, hook in hooks.items():
        if isinstance(hook, dict) and 'type' not in hook:
            near = nearest(name, sorted({*DEFAULT_HOOKS, *hooks} - {name}))
            hint = _(DID_YOU_MEAN, words=near) if near else ''
            path = f'default_hooks.{name}'
            yield Hit(path, {'path': path, 'hint': hint})


@rule('custom_hooks_no_dicts', Severity.ERROR, refuses=True)
def custom_hooks_no_dicts(view: ConfigView) -> Iterator[Hit]:
    """One dict in place of a list, texts, or dicts without ``type``."""
    hooks = view.get('custom_hooks')
    places = {'custom_hooks': hooks}
    if isinstance(hooks, (list, tuple)):
        places = {f'custom_hooks.{n}': one for n, one in enumerate(hooks)}
    elif hooks is None:
        return
    for path, value in places.items():
        is_dict = isinstance(value, dict) and path != 'custom_hooks'
        if not isinstance(value, Hook) and not (is_dict and 'type' in value):
            yield Hit(path, {'path': path, 'value': value})


@rule('resume_and_load_from', Severity.WARNING)
def resume_and_load_from(view: ConfigView) -> Iterator[Hit]:
    """Both set: every restart goes back to the same file."""
    file = view.get('load_from')
    if view.get('resume') is True and file:
        yield Hit('load_from', {'file': file})


def _merged(path: str, value: Any, base: Any) -> Iterator[tuple[str, Any]]:
    """What is different after a value was merged into that of a base."""
    both = isinstance(value, dict) and isinstance(base, dict)
    # A name with a dot in it is no part of a path.
    if both and not any(n == '_delete_' or '.' in str(n) for n in value):
        for name, inner in value.items():
            yield from _merged(f'{path}.{name}', inner, base.get(name))
        return
    if both:
        kept = {} if value.get('_delete_') else base
        value = {**kept, **overriding(value)}
    if value != base:
        yield path, value


def _values(path: str, node: Any) -> Iterator[tuple[str, Any]]:
    pairs: Any = ()
    if isinstance(node, dict):
        pairs = [(k, v) for k, v in node.items() if k not in _FOREIGN]
    elif isinstance(node, (list, tuple)):
        pairs = enumerate(node)
    for name, value in pairs:
        yield f'{path}.{name}', value
        yield from _values(f'{path}.{name}', value)


def _is_whole(text: str) -> bool:
    return text.lstrip('+-').isdigit()
