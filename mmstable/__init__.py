"""Keep an OpenMMLab training run alive and say what happened to it.

Importing this package registers its classes with mmengine. They can be
imported from here, too: ``from mmstable import SafeCheckpointHook``.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mmstable.config_paths import config_path as config_path
from mmstable.registration import register_all, started_as_command
from mmstable.version import __version__ as __version__

if TYPE_CHECKING:
    from mmstable.events import *  # noqa: F403
    from mmstable.hooks import *  # noqa: F403
    from mmstable.legacy.schedules import *  # noqa: F403
    from mmstable.loops import *  # noqa: F403
    from mmstable.optim import *  # noqa: F403
    from mmstable.strategies import *  # noqa: F403
    from mmstable.visualization import *  # noqa: F403

# Their classes are public names of mmstable; imported when asked for.
_PACKAGES = (
    'events',
    'hooks',
    'legacy.schedules',
    'loops',
    'optim',
    'strategies',
    'visualization',
)


def __getattr__(name: str) -> Any:
    if name == '__all__':
        classes = [one for module in _modules() for one in module.__all__]
        return ['__version__', 'config_path', *classes]
    # Other names are asked for by the import system, which looks for modules.
    if name[:1].isupper():
        for module in _modules():
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module 'mmstable' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__('__all__')})


def _modules() -> Iterator[Any]:
    return (import_module(f'mmstable.{name}') for name in _PACKAGES)


if not started_as_command():
    register_all()
