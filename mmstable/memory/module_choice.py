"""Which modules of a model can save memory?"""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch.nn import Module, ModuleDict, ModuleList, Sequential
from torch.nn.modules.batchnorm import _BatchNorm

from mmstable.settings import no_match

_CONTAINERS = (Sequential, ModuleList, ModuleDict)


def choose_modules(
    model: Module, patterns: Sequence[str], setting: str
) -> dict[str, Module]:
    """Modules by name or pattern, none inside another one.

    Args:
        model (Module): The model, without DDP and the like around it.
        patterns (Sequence[str]): Names, or regular expressions for whole
            names.
        setting (str): What to call them in an error.
    """
    modules = {name: one for name, one in model.named_modules() if name}
    chosen: dict[str, Module] = {}
    for text in patterns:
        found = [
            name
            for name in modules
            if name == text or re.fullmatch(text, name)
        ]
        if not found:
            raise ValueError(no_match(setting, text, list(modules)))
        chosen.update((name, modules[name]) for name in found)
    return _outermost(chosen)


def find_backbones(model: Module) -> dict[str, Module]:
    """The modules that are called a backbone, none inside another one.

    Args:
        model (Module): The model, without DDP and the like around it.
    """
    return _outermost(
        {
            name: module
            for name, module in model.named_modules()
            if re.fullmatch(r'(.*[._])?backbone', name)
        }
    )


def blocks_of(module: Module) -> list[Module]:
    """The parts of a module that are worth computing again, one by one.

    These are its children that have parts themselves, looking through
    containers; or the module itself if there are none.

    Args:
        module (Module): The module.
    """
    return _blocks(module) or [module]


def batch_norms(modules: Sequence[Module]) -> list[str]:
    """Layers that use statistics of their batch now, by name.

    Args:
        modules (Sequence[Module]): Where to look.
    """
    return [
        name or type(layer).__name__
        for module in modules
        for name, layer in module.named_modules()
        if isinstance(layer, _BatchNorm) and layer.training
    ]


def _blocks(module: Module) -> list[Module]:
    found: list[Module] = []
    for child in module.children():
        if isinstance(child, _CONTAINERS):
            inner = _blocks(child)
            # A list of modules cannot be called itself.
            if not inner and isinstance(child, Sequential) and len(child) > 1:
                inner = [child]
            found += inner
        elif any(True for _ in child.children()):
            found.append(child)
    return found


def _outermost(modules: dict[str, Module]) -> dict[str, Module]:
    return {
        name: module
        for name, module in modules.items()
        if not any(name.startswith(f'{other}.') for other in modules)
    }
