"""Models that would not be trained as meant."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from mmengine.model import BaseModel
from mmengine.registry import MODELS

from mmstable.finding import Severity
from mmstable.preflight.config_tree import walk
from mmstable.preflight.config_view import ConfigView, uses_amp
from mmstable.preflight.registered import class_of
from mmstable.preflight.rule import Hit, rule

_SAFE_HOOK = 'SafeActivationCheckpointHook'
_CHECKPOINTING = ('with_cp', 'with_checkpoint', 'use_checkpoint')


@rule('activation_checkpointing', Severity.ERROR)
def activation_checkpointing(view: ConfigView) -> Iterator[Hit]:
    """The key of mmengine leaves the modules without gradients."""
    path = 'activation_checkpointing'
    names = view.get(path)
    if not names:
        return
    change: dict[str, Any] = {path: None}
    if all(hook.kind != _SAFE_HOOK for hook in view.hooks):
        safe = {'type': f'mmstable.{_SAFE_HOOK}', 'modules': names}
        change['custom_hooks'] = [*(view.get('custom_hooks') or []), safe]
    yield Hit(path, {'names': names}, change)


@rule('unused_with_checkpointing', Severity.WARNING)
def unused_with_checkpointing(view: ConfigView) -> Iterator[Hit]:
    """DDP sees parameters twice if both are on."""
    path = 'find_unused_parameters'
    unused = view.get(path) or view.get(f'model_wrapper_cfg.{path}')
    if not unused or view.get('model_wrapper_cfg.static_graph'):
        return
    for where, node in walk(view.get('model'), 'model'):
        for name in _CHECKPOINTING:
            if node.get(name) is True:
                yield Hit(path, {'path': f'{where}.{name}'})
                return


@rule('train_step_without_context', Severity.WARNING)
def train_step_without_context(view: ConfigView) -> Iterator[Hit]:
    """A ``train_step`` of its own that never enters ``optim_context``."""
    needs_it = view.accumulation > 1 or any(map(uses_amp, view.wrappers))
    model = class_of(view, MODELS, view.get('model'))
    step = getattr(model, 'train_step', None)
    if not needs_it or step is None or step is BaseModel.train_step:
        return
    if not _enters_context(step):
        yield Hit('model.type', {'name': step.__qualname__})


def _enters_context(function: Any) -> bool:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        # Without its source there is nothing to say.
        return True
    names = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    # What it hands on to others, they may do.
    return bool(names & {'optim_context', 'train_step', 'accumulate_grad'})
