"""Find the class that a dict of a config means, and its arguments."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from mmengine.dataset import BaseDataset
from mmengine.hooks import CheckpointHook
from mmengine.logging import MMLogger
from mmengine.optim import OptimWrapper
from mmengine.optim.scheduler.lr_scheduler import LRSchedulerMixin
from mmengine.optim.scheduler.momentum_scheduler import MomentumSchedulerMixin
from mmengine.registry import MODELS, Registry
from mmengine.runner import Runner

from mmstable.check.config_tree import ConfigView, walk
from mmstable.checkpoint.folders import hook_arguments
from mmstable.legacy.schedules import PolicyScheduler
from mmstable.loops.train import SafeLoop

# Scopes that a `type` may start with.
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
    """Return the class of a dict; None if it is unknown here.

    Args:
        view (ConfigView): The config, for its default scope.
        registry (Registry): Registry that mmengine would use.
        node (Any): The dict with a ``type``.
    """
    kind = node.get('type') if isinstance(node, Mapping) else None
    return find_class(registry, kind, view.get('default_scope'))


def find_class(registry: Registry, kind: Any, scope: str | None) -> Any:
    """Return the class that a ``type`` means; None if it is unknown here.

    Args:
        registry (Registry): Registry that mmengine would use.
        kind (Any): A name, or the class itself.
        scope (str, optional): The default scope of the config.
    """
    if not isinstance(kind, str):
        return kind
    package = kind.partition('.')[0]
    if package in SCOPES and not is_installed(package):
        return None
    if not scope or not is_installed(scope):
        scope = 'mmengine'
    # mmengine logs a warning for each unknown scope.
    logger = MMLogger.get_current_instance()
    before, logger.disabled = logger.disabled, True
    try:
        with registry.switch_scope_and_registry(scope) as found:
            return found.get(kind)
    finally:
        logger.disabled = before


def names_in(registry: Registry) -> set[str]:
    """Return the names of all classes that a registry and its children have.

    Args:
        registry (Registry): Any of the tree.
    """
    names = set(registry.root.module_dict)
    for child in registry.root.children.values():
        names |= {*child.module_dict}
        names |= {f'{child.scope}.{name}' for name in child.module_dict}
    return names


def missing_packages(node: Any) -> list[str]:
    """Return the packages that a part of a config needs and that are absent.

    Args:
        node (Any): The config, or a part of it.
    """
    scope = node.get('default_scope') if isinstance(node, Mapping) else None
    names = {scope} if isinstance(scope, str) else set()
    for _, inner in walk(node):
        for value in (inner.get('type'), inner.get('_scope_')):
            package = str(value).partition('.')[0]
            if isinstance(value, str) and package in SCOPES:
                names.add(package)
    return sorted(name for name in names if not is_installed(name))


def is_installed(scope: str) -> bool:
    """Whether the classes of a scope can be imported."""
    registered = scope in MODELS.children or scope == MODELS.scope
    return registered or importlib.util.find_spec(scope) is not None


# Classes of these packages pass `**kwargs` on to a base class.
_PASSING_ON = (
    BaseDataset,
    LRSchedulerMixin,
    MomentumSchedulerMixin,
    OptimWrapper,
    SafeLoop,
)
_PACKAGES = ('mmengine', 'mmstable', *SCOPES)


def arguments_of(built: Any) -> set[str]:
    """Return the arguments of a class and of the bases it passes them to."""
    return {name for names, _ in _signatures(built) for name in names}


def refused_by(built: Any, names: Iterable[str]) -> list[str]:
    """Return the arguments that a class certainly does not accept.

    Args:
        built (Any): A class or a function.
        names (Iterable[str]): Arguments by name.
    """
    known = arguments_of(built)
    if inspect.isclass(built) and issubclass(built, CheckpointHook):
        # The hook passes them to this function at the first checkpoint.
        known |= hook_arguments(Runner.save_checkpoint)
    elif _accepts_anything(built):
        return []
    return [name for name in names if name not in known]


def _accepts_anything(built: Any) -> bool:
    signatures = _signatures(built)
    if not signatures:
        return True
    passes_on = (
        inspect.isclass(built)
        and issubclass(built, _PASSING_ON)
        and built.__module__.partition('.')[0] in _PACKAGES
        and not signatures[-1][1]
    )
    if inspect.isclass(built) and issubclass(built, PolicyScheduler):
        # The settings of its policy.
        return True
    return signatures[0][1] and not passes_on


@cache
def _signatures(built: Any) -> list[tuple[set[str], bool]]:
    """Return argument names of a class and its bases, while they pass on.

    Returns:
        list: Names, and whether ``**kwargs`` takes more.
    """
    found = []
    for one in inspect.getmro(built) if inspect.isclass(built) else [built]:
        try:
            parameters = inspect.signature(one).parameters.values()
        except (TypeError, ValueError):
            break
        has_more = any(p.kind is p.VAR_KEYWORD for p in parameters)
        found.append(({p.name for p in parameters}, has_more))
        if not has_more:
            break
    return found
