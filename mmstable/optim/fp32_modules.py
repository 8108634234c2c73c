"""Arguments of a call that are float32 while it runs.

Named modules that keep full precision inside an autocast region.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch.nn import Module

from mmstable.optim.grad_health import unwrap
from mmstable.settings import no_match, pattern


class Float32Arguments:
    """Casts tensors of half precision, in the containers they are in.

    A module gets the very lists and dicts of its caller, because it may fill
    them. :meth:`restore` puts the tensors back that were replaced inside.
    """

    def __init__(self) -> None:
        self._changed: list[list | dict] = []
        # By the id of what replaces it; that is kept, or its id may be reused.
        self._originals: dict[int, tuple[Any, Any]] = {}

    def cast(self, data: Any) -> Any:
        """The same with float32 tensors; the same object if it has none."""
        if torch.is_tensor(data):
            is_half = data.dtype in (torch.float16, torch.bfloat16)
            return self._replace(data, data.float()) if is_half else data
        if isinstance(data, (list, dict)):
            self._cast_inside(data)
        elif isinstance(data, tuple):
            parts = [self.cast(part) for part in data]
            if any(new is not old for new, old in zip(parts, data)):
                is_named = hasattr(data, '_fields')
                make: Any = type(data)
                return self._replace(
                    data, make(*parts) if is_named else make(parts)
                )
        return data

    def restore(self) -> None:
        """Undo all changes of lists and dicts but those by others."""
        for container in self._changed:
            for key, value in _items(container):
                replacement, original = self._originals.get(
                    id(value), (None, None)
                )
                if replacement is not None:
                    container[key] = original

    def _cast_inside(self, container: list | dict) -> None:
        changes = [
            (key, new)
            for key, old in _items(container)
            if (new := self.cast(old)) is not old
        ]
        for key, new in changes:
            container[key] = new
        if changes:
            self._changed.append(container)

    def _replace(self, original: Any, replacement: Any) -> Any:
        self._originals[id(replacement)] = replacement, original
        return replacement


def _items(container: list | dict) -> Iterable[tuple[Any, Any]]:
    if isinstance(container, dict):
        return list(container.items())
    return list(enumerate(container))


_OWNER = 'SafeAmpOptimWrapper'


class Fp32Modules:
    """Run the modules of some names outside autocast, on float32 inputs.

    Args:
        patterns (Sequence[str]): Module names, each with all that is below
            it, or regular expressions for whole names.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        if isinstance(patterns, str):
            patterns = [patterns]
        self._patterns = [
            pattern(_OWNER, 'fp32_modules', text) for text in patterns
        ]
        self._models: WeakSet[Module] = WeakSet()
        # What is in the whole model need not be in each part of it.
        self._found: set[str] = set()

    def install(self, model: Module, device_type: str) -> None:
        """Hook the modules of a model; once for each model.

        Args:
            model (Module): The model.
            device_type (str): Where it runs: 'cpu', 'cuda', ...
        """
        if not self._patterns or model in self._models:
            return
        self._models.add(model)
        chosen = self._choose(dict(unwrap(model).named_modules()))
        # Each module below is hooked as well: heads of OpenMMLab are often
        # entered by `loss()` or `forward()`, which no hook of theirs sees.
        for module in {part for top in chosen for part in top.modules()}:
            guard = _FullPrecision(device_type)
            module.register_forward_pre_hook(guard.enter, with_kwargs=True)
            module.register_forward_hook(guard.leave, always_call=True)

    def _choose(self, modules: dict[str, Module]) -> list[Module]:
        chosen: list[Module] = []
        for expression in self._patterns:
            text = expression.pattern
            names = [
                name
                for name in modules
                if name == text or expression.fullmatch(name)
            ]
            if not names and text not in self._found:
                problem = no_match(
                    'fp32_modules', text, [name for name in modules if name]
                )
                raise ValueError(f'{_OWNER}: {problem}')
            self._found.add(text)
            chosen.extend(modules[name] for name in names)
        return chosen


class _FullPrecision:
    """The two forward hooks of one module."""

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._calls: list[tuple[torch.autocast, Float32Arguments]] = []

    def enter(
        self, module: Module, args: tuple, kwargs: dict
    ) -> tuple[tuple, dict]:
        context = torch.autocast(self._device_type, enabled=False)
        context.__enter__()
        arguments = Float32Arguments()
        self._calls.append((context, arguments))
        return arguments.cast(args), arguments.cast(kwargs)

    def leave(self, module: Module, args: tuple, output: Any) -> None:
        context, arguments = self._calls.pop()
        arguments.restore()
        context.__exit__(None, None, None)
