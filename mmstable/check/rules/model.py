"""Rules about classes, metrics, normalization and names of types."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mmengine import registry as root

from mmstable.check.config_tree import (
    ConfigView,
    Part,
    kind_of,
    whole_number,
)
from mmstable.check.registry import class_of, is_installed, names_in
from mmstable.check.rule import Violation, error, setting, warning
from mmstable.check.rules.names import TYPO, places
from mmstable.finding import Severity
from mmstable.io.files import read_bounded
from mmstable.io.schema import parse_json
from mmstable.settings import is_number, nearest

# Annotation files up to this size are read for their categories.
_MAX_BYTES = 64 << 20
_ADAM_LR = 0.01

setting(
    'clips_to_zero',
    Severity.ERROR,
    'wrappers.*.clip_grad.max_norm',
    lambda view, part, norm: is_number(norm) and norm <= 0,
    what='`{path}={value}` clips every gradient to zero.',
    why='The weights never change.',
    fix='use a limit above 0, or `clip_grad=None`',
)
setting(
    'high_adam_lr',
    Severity.WARNING,
    'wrappers.*.optimizer.lr',
    lambda view, part, lr: (
        is_number(lr)
        and lr >= _ADAM_LR
        and 'Adam' in kind_of(part.get('optimizer'))
    ),
    what='`{path}={value}` with an Adam optimizer.',
    why='Adam makes steps of about the size of the learning rate, whatever '
    'the gradients: rates for SGD are 10 to 100 times too high for it.',
    fix='start with 1e-3 or less',
)
setting(
    'unserialized_data',
    Severity.WARNING,
    'loaders.*.dataset.serialize_data',
    lambda view, part, on: on is False and part.get('num_workers', 0) > 1,
    True,
    what='`serialize_data=False` with several workers.',
    why='Every worker gets its own copy of all annotations, and host memory '
    'grows for hours.',
)


@error(
    is_fatal=True,
    what='`{path}` must be a number, got {value!r}.',
    why='The optimizer cannot be built.',
    fix='write a number without quotes',
)
def not_a_number(view: ConfigView) -> Iterator[Violation]:
    """Find words in place of numbers of an optimizer."""
    for wrapper in view.wrappers:
        for name in ('lr', 'momentum', 'weight_decay', 'eps'):
            value = wrapper.get(f'optimizer.{name}')
            try:
                float(0 if value is None else value)
            except (TypeError, ValueError):
                path = wrapper.at(f'optimizer.{name}')
                yield Violation(path, value=value)


@error(
    is_fatal=True,
    what="`{path}`: there is no {registry} '{name}'; did you mean '{near}'?",
    why='mmengine cannot build an object of an unregistered type.',
)
def misspelt_type(view: ConfigView) -> Iterator[Violation]:
    """Find classes that are not registered, but one of a similar name is."""
    if not is_installed(view.get('default_scope') or 'mmengine'):
        return
    for one in places(view):
        kind = one.node.get('type') if isinstance(one.node, Mapping) else None
        if not isinstance(kind, str) or one.registry is None:
            continue
        if class_of(view, one.registry, one.node) is not None:
            continue
        known = names_in(one.registry)
        near = nearest(kind, known, TYPO)
        # One of another scope is no typo.
        if near and kind not in known:
            path = f'{one.path}.type'
            yield Violation(
                path,
                {path: near[0]},
                registry=one.registry.name,
                name=kind,
                near=near[0],
            )


@error(
    what='`{path}` has a 0, by which images are divided.',
    why='Every input is Inf or NaN from the first iteration on.',
    fix='use the standard deviation of each channel of your images',
)
def zero_std(view: ConfigView) -> Iterator[Violation]:
    """Find images that are divided by zero."""
    for key in ('model', 'data_preprocessor'):
        for path, node in view.nodes(key):
            values = node.get('std')
            if isinstance(values, (list, tuple)) and 0 in values:
                yield Violation(f'{path}.std', value=values)


@warning(
    what="`save_best='{metric}'`, but the evaluators give {prefixes}.",
    why='No best checkpoint is saved; mmengine itself ends the run at the '
    'first validation.',
    fix='use the name of a metric as the log of a validation shows it',
)
def unknown_best(view: ConfigView) -> Iterator[Violation]:
    """Find a ``save_best`` with a prefix that no evaluator has."""
    hook = view.checkpoint_hook
    metrics = hook.get('save_best') if hook is not None else None
    prefixes = [_prefix(view, one) for one in view.evaluators]
    if hook is None or not prefixes or None in prefixes:
        return
    for metric in [metrics] if isinstance(metrics, str) else metrics or ():
        prefix = str(metric).rpartition('/')[0]
        if metric != 'auto' and prefix not in prefixes:
            known = [f'{one}/...' if one else '...' for one in prefixes]
            path = hook.at('save_best')
            yield Violation(path, metric=metric, prefixes=known)


def _prefix(view: ConfigView, evaluator: Part) -> str | None:
    """Return what the metrics of an evaluator start with, if known."""
    found = class_of(view, root.METRICS, evaluator.settings)
    if found is None or not hasattr(found, 'default_prefix'):
        return None
    return evaluator.get('prefix') or found.default_prefix or ''


@error(
    what='`{path}` is the string {value!r}, not a list of classes.',
    why="('cat') is 'cat' in Python; a tuple of one needs a comma: ('cat',).",
)
def text_for_classes(view: ConfigView) -> Iterator[Violation]:
    """Find a string in place of class names; a file of names is fine."""
    for path, node in view.data_nodes:
        info = node.get('metainfo')
        value = info.get('classes') if isinstance(info, Mapping) else None
        if isinstance(value, str) and not view.machine.exists(value):
            where = f'{path}.metainfo.classes'
            yield Violation(where, {where: (value,)}, value=value)


@warning(
    what='`{path}` is {count}, but the training dataset has '
    '{classes:class|classes}.',
    why='Labels outside the range crash a GPU; a head with more outputs '
    'than classes wastes them, and its metrics are of other classes.',
)
def class_count(view: ConfigView) -> Iterator[Violation]:
    """Find heads whose number of outputs is not that of the classes."""
    data = view.nodes('train_dataloader.dataset')
    names = (_class_names(view, node) for __, node in data)
    classes: int | None = len(next(filter(None, names), ())) or None
    heads = list(_heads(view))
    if classes is None:
        # The main head decides.
        counts = [n for path, n in heads if 'auxiliary' not in path]
        classes = counts[0] if len(set(counts)) == 1 else None
        heads = [one for one in heads if 'auxiliary' in one[0]]
    for path, count in heads if classes is not None else ():
        if count != classes:
            yield Violation(
                path, {path: classes}, count=count, classes=classes
            )


def _heads(view: ConfigView) -> Iterator[tuple[str, int]]:
    for path, node in view.nodes('model'):
        count = whole_number(node.get('num_classes'))
        # One of a list has its number at the end.
        name = path.rstrip('.0123456789')
        is_head = name == 'model' or name.endswith('head')
        # Those of proposals and of stuff have other classes.
        is_other = 'rpn' in path or 'semantic' in path
        if count and is_head and not is_other:
            yield f'{path}.num_classes', count


def _class_names(view: ConfigView, node: Mapping[str, Any]) -> list[str]:
    """Return the classes of a dataset; none if they are unknown."""
    info = node.get('metainfo')
    given = info.get('classes') if isinstance(info, Mapping) else None
    if given is None and isinstance(node.get('type'), str):
        found = class_of(view, root.DATASETS, node)
        given = (getattr(found, 'METAINFO', None) or {}).get('classes')
    return list(given) if isinstance(given, (list, tuple)) else []


@warning(
    what="'{file}' has {count:category|categories} ({some}); {missing} of "
    'the {classes:class|classes} are not among them.',
    why='Annotations of other classes are dropped without a message: images '
    'train as if they were empty.',
    fix='set `metainfo=dict(classes=(...))` of the dataset, and '
    '`num_classes` of the heads',
)
def missing_categories(view: ConfigView) -> Iterator[Violation]:
    """Find classes that a COCO annotation file does not have."""
    for path, node in view.data_nodes:
        file = os.path.join(
            str(node.get('data_root') or ''), str(node.get('ann_file'))
        )
        if not file.endswith('.json'):
            continue
        names = _class_names(view, node)
        found = _categories(file)
        missing = [one for one in names if one not in found]
        if found and missing:
            yield Violation(
                f'{path}.ann_file',
                file=file,
                count=len(found),
                some=sorted(found)[:3],
                missing=len(missing),
                classes=len(names),
            )


def _categories(file: str) -> set[str]:
    """Return the names of the categories of a COCO file."""
    try:
        content = parse_json(read_bounded(Path(file), _MAX_BYTES), _MAX_BYTES)
        return {str(one['name']) for one in content['categories']}
    except (OSError, ValueError, TypeError, KeyError):
        return set()
