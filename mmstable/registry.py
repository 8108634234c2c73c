"""mmstable's registries, children of mmengine's.

mmengine imports this module automatically as soon as a config says
``type='mmstable.Something'``, so it must stay free of anything that can fail.
"""

from __future__ import annotations

import warnings
from typing import Callable, TypeVar

from mmengine import registry as root
from mmengine.registry import Registry

_Class = TypeVar('_Class', bound=type)
# Classes that shall get their bare names, and where.
_WAITING: list[tuple[Registry, type, str]] = []
_takes_bare_names = False


def _child(parent: Registry, location: str) -> Registry:
    return Registry(
        parent.name, parent=parent, scope='mmstable', locations=[location]
    )


OPTIM_WRAPPERS = _child(root.OPTIM_WRAPPERS, 'mmstable.optim')
OPTIMIZERS = _child(root.OPTIMIZERS, 'mmstable.optim')
PARAM_SCHEDULERS = _child(root.PARAM_SCHEDULERS, 'mmstable.legacy.schedules')
HOOKS = _child(root.HOOKS, 'mmstable.hooks')
VISBACKENDS = _child(root.VISBACKENDS, 'mmstable.vis_backend')
LOOPS = _child(root.LOOPS, 'mmstable.loops')
STRATEGIES = _child(root.STRATEGIES, 'mmstable.strategies')
MODELS = _child(root.MODELS, 'mmstable.demo')
DATASETS = _child(root.DATASETS, 'mmstable.demo')
TRANSFORMS = _child(root.TRANSFORMS, 'mmstable.demo')
METRICS = _child(root.METRICS, 'mmstable.demo')


def register_globally(
    registry: Registry, *aliases: str
) -> Callable[[_Class], _Class]:
    """Register a class for ``mmstable.Name`` and for the bare ``Name``.

    The bare name lives in mmengine's root registry, where every
    ``default_scope`` finds it. A class that is there already is left alone.

    Args:
        registry (Registry): The mmstable registry to register in.
        *aliases (str): Older names of the class.
    """

    def decorate(cls: _Class) -> _Class:
        for name in (cls.__name__, *aliases):
            registry.register_module(name, module=cls)
            _WAITING.append((registry.root, cls, name))
        if _takes_bare_names:
            take_bare_names()
        return cls

    return decorate


def take_bare_names() -> None:
    """Register all classes under their bare names, now and from now on.

    A command calls it after it has read the config: a class of the user that
    has the same name could not be registered otherwise.
    """
    global _takes_bare_names  # noqa: PLW0603
    _takes_bare_names = True
    while _WAITING:
        parent, cls, name = _WAITING.pop(0)
        other = parent.module_dict.get(name)
        if other is None:
            parent.register_module(name, module=cls)
            continue
        warnings.warn(
            f"'{name}' is already registered in mmengine by "
            f'{other.__module__}, and stays so. Write '
            f"type='mmstable.{name}' to get the one of mmstable.",
            stacklevel=2,
        )
