"""Named modules that keep full precision inside an autocast region."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch.nn import Module

from mmstable.optim.float32_arguments import Float32Arguments
from mmstable.optim.parameter_names import unwrap
from mmstable.settings import no_match, pattern

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
