"""Which class does a config string mean?

mmengine imports this module by itself as soon as a config says
``type='mmstable.Something'``, so it must stay free of anything that can fail.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Callable, TypeVar

from mmengine import registry as root
from mmengine.registry import Registry

_Class = TypeVar('_Class', bound=type)
# Classes that have their bare names, and where.
_BARE_NAMES: set[tuple[Registry, type]] = set()


def _child(parent: Registry, location: str) -> Registry:
    return Registry(
        parent.name, parent=parent, scope='mmstable', locations=[location]
    )


OPTIM_WRAPPERS = _child(root.OPTIM_WRAPPERS, 'mmstable.optim')
OPTIMIZERS = _child(root.OPTIMIZERS, 'mmstable.optim')
PARAM_SCHEDULERS = _child(root.PARAM_SCHEDULERS, 'mmstable.legacy.schedules')
HOOKS = _child(root.HOOKS, 'mmstable.hooks')
VISBACKENDS = _child(root.VISBACKENDS, 'mmstable.visualization')
LOOPS = _child(root.LOOPS, 'mmstable.loops')
STRATEGIES = _child(root.STRATEGIES, 'mmstable.strategies')
MODELS = _child(root.MODELS, 'mmstable.demo')
DATASETS = _child(root.DATASETS, 'mmstable.demo')
TRANSFORMS = _child(root.TRANSFORMS, 'mmstable.demo')
METRICS = _child(root.METRICS, 'mmstable.demo')


def register_globally(registry: Registry) -> Callable[[_Class], _Class]:
    """Register a class for ``mmstable.Name`` and for the bare ``Name``.

    The bare name lives in mmengine's root registry, where every
    ``default_scope`` finds it. A class that somebody else put there first is
    left alone.

    Args:
        registry (Registry): The mmstable registry to register in.
    """

    def decorate(cls: _Class) -> _Class:
        registry.register_module(module=cls)
        _take_bare_name(registry.root, cls)
        return cls

    return decorate


@contextmanager
def bare_names_free() -> Iterator[None]:
    """Give the bare names back for a while.

    A command of mmstable registers its classes before it reads a config. A
    class of the user that has the same name could not be registered then.
    """
    ours = [
        (parent, cls)
        for parent, cls in _BARE_NAMES
        if parent.module_dict.get(cls.__name__) is cls
    ]
    for parent, cls in ours:
        del parent.module_dict[cls.__name__]
    try:
        yield
    finally:
        for parent, cls in ours:
            _take_bare_name(parent, cls)


def registered_names() -> set[tuple[str, str]]:
    """What mmengine's own registries have: their names, and the classes'."""
    return {
        (registry.name, name)
        for registry in _roots()
        for name in registry.module_dict
    }


def forget_since(before: set[tuple[str, str]]) -> set[str]:
    """Forget what was registered since; the modules that it came from."""
    modules = set()
    for registry in _roots():
        for name in list(registry.module_dict):
            if (registry.name, name) not in before:
                modules.add(registry.module_dict.pop(name).__module__)
    return modules


def _roots() -> list[Registry]:
    return [one for one in vars(root).values() if isinstance(one, Registry)]


def _take_bare_name(parent: Registry, cls: type) -> None:
    name = cls.__name__
    other = parent.module_dict.get(name)
    if other is None:
        parent.register_module(module=cls)
        _BARE_NAMES.add((parent, cls))
        return
    warnings.warn(
        f"'{name}' is already registered in mmengine by "
        f'{other.__module__}, and stays so. Write '
        f"type='mmstable.{name}' to get the one of mmstable.",
        stacklevel=3,
    )
