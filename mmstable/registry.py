"""Which class does a config string mean?

mmengine imports this module by itself as soon as a config says
``type='mmstable.Something'``, so it must stay free of anything that can fail.
"""

from __future__ import annotations

import warnings
from typing import Callable, TypeVar

from mmengine import registry as root
from mmengine.registry import Registry

_Class = TypeVar('_Class', bound=type)


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
        name = cls.__name__
        other = registry.root.module_dict.get(name)
        if other is None:
            registry.root.register_module(module=cls)
        else:
            warnings.warn(
                f"'{name}' is already registered in mmengine by "
                f'{other.__module__}, and stays so. Write '
                f"type='mmstable.{name}' to get the one of mmstable.",
                stacklevel=2,
            )
        return cls

    return decorate
