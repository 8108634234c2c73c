"""Takes the times of hooks, wrappers and modules, until it is removed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Callable

import torch
from torch.nn import Module

from mmstable.liveness.spans import BACKWARD, MODULE, STEP, SpanRecorder
from mmstable.optim.parameter_names import clean_name

# What is part of an iteration, or between two of them.
BEFORE, AFTER = 'before_train_iter', 'after_train_iter'
_STAGES = (BEFORE, AFTER, 'before_train_epoch', 'after_train_epoch')
_OF_WRAPPERS = {'backward': BACKWARD, 'step': STEP, 'zero_grad': STEP}


class Instruments:
    """Puts timers on the objects of a run, not on their classes.

    Nothing of them is left after :meth:`remove`.

    Args:
        recorder (SpanRecorder): Where the times go.
    """

    def __init__(self, recorder: SpanRecorder) -> None:
        self._recorder = recorder
        self._is_on = True
        self._remove: list[Callable[[], None]] = []

    def watch_hooks(self, hooks: Iterable[Any], watcher: Any = None) -> None:
        """Take the times of hooks.

        Args:
            hooks (Iterable): The hooks.
            watcher (Any, optional): The one of them that ends iterations.
                Defaults to None.
        """
        for hook in hooks:
            for stage in _STAGES:
                if hook is not watcher or stage == BEFORE:
                    self._watch(hook, stage, stage, type(hook).__name__)

    def watch_wrappers(self, wrappers: Mapping[str, Any]) -> None:
        """Take the times of backward passes and steps."""
        for name, wrapper in wrappers.items():
            for method, kind in _OF_WRAPPERS.items():
                self._watch(wrapper, method, kind, name)

    def watch_modules(self, model: Module, depth: int) -> None:
        """Take the times of modules in the forward pass.

        Args:
            model (Module): The model, outside of any wrapper.
            depth (int): How many names deep, as 2 for 'backbone.layer3'.
        """
        for full, module in model.named_modules():
            name = clean_name(f'{full}.').rstrip('.')
            if not name or name.count('.') >= depth:
                continue
            if isinstance(module, torch.jit.ScriptModule):
                continue
            begin = _ModuleTimer(partial(self._recorder.begin, MODULE), name)
            end = _ModuleTimer(self._recorder.end_module, name)
            self._remove += [
                module.register_forward_pre_hook(begin).remove,
                module.register_forward_hook(end).remove,
            ]

    def remove(self) -> None:
        """Take all timers off."""
        self._is_on = False
        while self._remove:
            self._remove.pop()()

    def _watch(self, owner: Any, name: str, kind: str, label: str) -> None:
        original = getattr(owner, name, None)
        own = getattr(owner, '__dict__', None)
        if original is None or own is None:
            return
        had = name in own
        recorder = self._recorder

        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self._is_on:
                return original(*args, **kwargs)
            token = recorder.begin(kind, label)
            try:
                return original(*args, **kwargs)
            finally:
                recorder.end(token)

        def restore() -> None:
            # Unless somebody else has put something there since.
            if own.get(name) is not timed:
                return
            if had:
                own[name] = original
            else:
                del own[name]

        own[name] = timed
        self._remove.append(restore)


class _ModuleTimer:
    """A hook of a module; that of a copy of the module does nothing."""

    def __init__(self, note: Callable[[str], Any], name: str) -> None:
        self._note, self._name = note, name

    def __call__(self, *args: Any) -> None:
        self._note(self._name)

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        # Somebody may copy or save a whole model in a measured iteration.
        return _no_timer, ()


def _no_timer() -> Callable[..., None]:
    return _ignore


def _ignore(*args: Any) -> None:
    """Do nothing."""
