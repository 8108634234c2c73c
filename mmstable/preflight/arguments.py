"""Which arguments does a class take, and which does it surely refuse?"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from functools import cache
from typing import Any

from mmengine.dataset import BaseDataset
from mmengine.hooks import CheckpointHook
from mmengine.optim import OptimWrapper
from mmengine.optim.scheduler.lr_scheduler import LRSchedulerMixin
from mmengine.optim.scheduler.momentum_scheduler import MomentumSchedulerMixin
from mmengine.runner import Runner

from mmstable.checkpoint.hook_arguments import hook_arguments
from mmstable.loops.safe_loop import SafeLoop
from mmstable.preflight.registered import SCOPES

# The `**kwargs` of these all go to a base class, in these packages. Of other
# classes nobody knows.
_PASSING_ON = (
    BaseDataset,
    LRSchedulerMixin,
    MomentumSchedulerMixin,
    OptimWrapper,
    SafeLoop,
)
_PACKAGES = ('mmengine', 'mmstable', *SCOPES)


def arguments_of(built: Any) -> set[str]:
    """The arguments of a class, and those that it may pass on to its bases."""
    return {name for names, _ in _signatures(built) for name in names}


def refused_by(built: Any, names: Iterable[str]) -> list[str]:
    """Those of some arguments that a class cannot take.

    Args:
        built (Any): A class or a function.
        names (Iterable[str]): Arguments by name.
    """
    if inspect.isclass(built) and issubclass(built, CheckpointHook):
        known = _of_checkpoints(built)
    elif _takes_anything(built):
        return []
    else:
        known = arguments_of(built)
    return [name for name in names if name not in known]


def _of_checkpoints(built: type[CheckpointHook]) -> set[str]:
    # Others than these are tried at the first checkpoint, and fail there.
    own = arguments_of(built)
    return own | hook_arguments(Runner.save_checkpoint)


def _takes_anything(built: Any) -> bool:
    signatures = _signatures(built)
    if not signatures:
        return True
    passes_on = (
        inspect.isclass(built)
        and issubclass(built, _PASSING_ON)
        and built.__module__.partition('.')[0] in _PACKAGES
        and not signatures[-1][1]
    )
    return signatures[0][1] and not passes_on


@cache
def _signatures(built: Any) -> list[tuple[set[str], bool]]:
    """Names of arguments, and whether there may be more, up to a base."""
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
