"""Classes that a config names, and nobody knows."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from mmengine.registry import (
    DATASETS,
    HOOKS,
    LOOPS,
    MODELS,
    OPTIM_WRAPPERS,
    Registry,
)

from mmstable.finding import Severity
from mmstable.preflight.config_view import ConfigView
from mmstable.preflight.registered import (
    class_of,
    is_installed,
    missing_packages,
)
from mmstable.preflight.rule import Hit, rule


@rule('missing_package', Severity.WARNING, at_start=False)
def missing_package(view: ConfigView) -> Iterator[Hit]:
    """Packages of classes that are not installed here.

    It is about the machine, not the config: it is true for 99 % of the
    published configs where their packages are not installed. Rules that have
    to see a class say nothing then.
    """
    names = missing_packages(view.settings)
    if names:
        yield Hit('default_scope', {'names': names})


@rule('missing_import', Severity.ERROR)
def missing_import(view: ConfigView) -> Iterator[Hit]:
    """Modules of ``custom_imports`` that cannot be imported."""
    listed = view.get('custom_imports.imports') or []
    for name in [listed] if isinstance(listed, str) else listed:
        try:
            import_module(name)
        except ImportError as error:
            yield Hit('custom_imports', {'name': name, 'error': error})


@rule('unknown_type', Severity.ERROR, at_start=False)
def unknown_type(view: ConfigView) -> Iterator[Hit]:
    """Classes that are not registered, all of them in one finding."""
    if not is_installed(view.get('default_scope') or 'mmengine'):
        return
    places: list[tuple[str, Registry, Any]] = [
        ('model', MODELS, view.get('model')),
        ('train_cfg', LOOPS, view.get('train_cfg')),
    ]
    places += [(w.path, OPTIM_WRAPPERS, w.settings) for w in view.wrappers]
    places += [(h.path, HOOKS, h.settings) for h in view.hooks]
    for loader in view.loaders:
        node = loader.settings.get('dataset')
        places.append((f'{loader.path}.dataset', DATASETS, node))
    wrong = {
        f'{path}.type': node['type']
        for path, registry, node in places
        if isinstance(node, dict)
        and isinstance(node.get('type'), str)
        and class_of(view, registry, node) is None
        and not missing_packages({'type': node['type']})
    }
    if wrong:
        names = sorted(set(wrong.values()))
        yield Hit(next(iter(wrong)), {'names': names})
