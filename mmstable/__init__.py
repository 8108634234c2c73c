"""Keep an OpenMMLab training run alive and report what happened to it.

Importing this package registers its classes with mmengine. They can be
imported from here, too: ``from mmstable import SafeCheckpointHook``. Only a
command of mmstable registers them later, and only if it needs them: that
imports torch, and ``mmstable --help`` should not take seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mmstable.settings import config_path as config_path
from mmstable.version import __version__ as __version__

if TYPE_CHECKING:
    from mmstable.events import *  # noqa: F403
    from mmstable.hooks import *  # noqa: F403
    from mmstable.legacy.schedules import *  # noqa: F403
    from mmstable.loops import *  # noqa: F403
    from mmstable.optim import *  # noqa: F403
    from mmstable.protection import protect as protect
    from mmstable.strategies import *  # noqa: F403
    from mmstable.vis_backend import *  # noqa: F403

# Their classes are public names of mmstable; imported when asked for.
_PACKAGES = (
    'events',
    'hooks',
    'legacy.schedules',
    'loops',
    'optim',
    'strategies',
    'vis_backend',
)


def __getattr__(name: str) -> Any:
    if name == '__all__':
        classes = [one for module in _modules() for one in module.__all__]
        return ['__version__', 'config_path', 'protect', *classes]
    if name == 'protect':
        return import_module('mmstable.protection').protect
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


@cache
def register_all() -> None:
    """Register every class as ``mmstable.Name``, and more with mmengine."""
    from mmengine.config.utils import MODULE2PACKAGE

    from mmstable import hooks, loops, optim, vis_backend  # noqa: F401
    from mmstable.check import dataset  # noqa: F401
    from mmstable.checkpoint.loaders import guard_checkpoints
    from mmstable.legacy import schedules  # noqa: F401

    # For `_base_ = 'mmstable::...'`. mmengine looks for a distribution of this
    # name first and trusts its metadata, which point to the wrong folder for
    # an editable installation; a module that is no distribution is found by
    # import.
    MODULE2PACKAGE['mmstable'] = 'mmstable.version'
    # A checkpoint is read as data. This is also what makes resuming work
    # with torch 2.6 and newer, whose own guard refuses what mmengine saves.
    guard_checkpoints()


def _is_command() -> bool:
    """Return whether this process is a command of mmstable.

    That is a program that imported ``mmstable_command`` first, as the script
    ``mmstable`` and the files of ``tools/`` do, or ``python -m mmstable``.
    """
    command = sys.modules.get('mmstable_command')
    if command is not None:
        return bool(command.IS_PROGRAM)
    # While `python -m` imports the package, `sys.argv` has '-m' in place of
    # the program. Its name is in `sys.orig_argv`, which Python 3.9 lacks.
    words = getattr(sys, 'orig_argv', [])
    return (
        sys.argv[:1] == ['-m']
        and len(words) > len(sys.argv)
        and words[-len(sys.argv)] == 'mmstable'
    )


IS_COMMAND = _is_command()
# A command does both later, and the bare names last: a class of the user that
# has the same name could not be registered otherwise.
if not IS_COMMAND:
    register_all()
    from mmstable.registry import take_bare_names

    take_bare_names()
