"""Which class does a dict of a config mean, if it can be had at all?"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from mmengine.registry import MODELS, Registry

from mmstable.preflight.config_tree import walk
from mmstable.preflight.config_view import ConfigView

# Packages that mmengine takes the first part of a type for.
SCOPES = (
    'mmaction',
    'mmagic',
    'mmcls',
    'mmdet',
    'mmdet3d',
    'mmocr',
    'mmpose',
    'mmpretrain',
    'mmrazor',
    'mmrotate',
    'mmseg',
    'mmselfsup',
    'mmtrack',
    'mmyolo',
)


def class_of(view: ConfigView, registry: Registry, node: Any) -> Any:
    """The class, or None if it is unknown here.

    Args:
        view (ConfigView): The config, for its default scope.
        registry (Registry): Where mmengine would look.
        node (Any): The dict with a ``type``.
    """
    kind = node.get('type') if isinstance(node, Mapping) else None
    return find_class(registry, kind, view.get('default_scope'))


def find_class(registry: Registry, kind: Any, scope: str | None) -> Any:
    """The class that a ``type`` means, or None if it is unknown here.

    Args:
        registry (Registry): Where mmengine would look.
        kind (Any): A name, or the class itself.
        scope (str, optional): The default scope of the config.
    """
    if not isinstance(kind, str):
        return kind
    if missing_packages({'type': kind}):
        return None
    if not scope or not is_installed(scope):
        scope = 'mmengine'
    with registry.switch_scope_and_registry(scope) as found:
        return found.get(kind)


def missing_packages(node: Any) -> list[str]:
    """Packages that a config, or a part of it, needs and that are absent."""
    scope = node.get('default_scope') if isinstance(node, Mapping) else None
    names = {scope} if isinstance(scope, str) else set()
    for _, inner in walk(node):
        for value in (inner.get('type'), inner.get('_scope_')):
            package = str(value).partition('.')[0]
            if isinstance(value, str) and package in SCOPES:
                names.add(package)
    return sorted(name for name in names if not is_installed(name))


def is_installed(scope: str) -> bool:
    """Whether the classes of a scope can be had."""
    registered = scope in MODELS.children or scope == MODELS.scope
    return registered or importlib.util.find_spec(scope) is not None
