"""Which class of mmengine has a safe one, and whose is another class?"""

from __future__ import annotations

import inspect
from typing import Any

from mmengine.hooks import CheckpointHook, EMAHook, ParamSchedulerHook
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import Registry
from mmengine.runner import (
    EpochBasedTrainLoop,
    IterBasedTrainLoop,
    TestLoop,
    ValLoop,
)

from mmstable import hooks, loops, optim
from mmstable.preflight.registered import find_class

SAFE: dict[type, type] = {
    OptimWrapper: optim.SafeOptimWrapper,
    AmpOptimWrapper: optim.SafeAmpOptimWrapper,
    CheckpointHook: hooks.SafeCheckpointHook,
    EMAHook: hooks.SafeEMAHook,
    ParamSchedulerHook: hooks.SafeParamSchedulerHook,
    EpochBasedTrainLoop: loops.SafeEpochBasedTrainLoop,
    IterBasedTrainLoop: loops.SafeIterBasedTrainLoop,
    ValLoop: loops.SafeValLoop,
    TestLoop: loops.SafeTestLoop,
}
_REPLACED = (CheckpointHook, EMAHook, ParamSchedulerHook)


def scoped(kind: type) -> str:
    """How every config may name a class of mmstable."""
    return f'mmstable.{kind.__name__}'


def resolve(registry: Registry, kind: Any, scope: str | None) -> type | None:
    """The class that a ``type`` means; None if that cannot be told.

    Args:
        registry (Registry): Where mmengine would look.
        kind (Any): A name, or the class itself.
        scope (str, optional): The default scope of the config.
    """
    try:
        found = find_class(registry, kind, scope)
    except Exception:
        # Importing packages of the user may fail in any way. Building the
        # run imports them again, and reports the error.
        return None
    return found if inspect.isclass(found) else None


def is_foreign(found: type) -> bool:
    """Whether a class does what a safe one does, but is not ours."""
    return not issubclass(found, tuple(SAFE.values()))


def is_foreign_hook(found: type) -> bool:
    """Whether it is a hook that somebody derived from one we replace."""
    return issubclass(found, _REPLACED) and is_foreign(found)
