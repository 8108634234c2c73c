"""Which parameters belong to the modules of a config?"""

from __future__ import annotations

from collections.abc import Iterable


def is_inside(name: str, modules: Iterable[str]) -> bool:
    """Whether a parameter is one of these, or in one of these modules."""
    return any(
        name == module or name.startswith(f'{module}.') for module in modules
    )


def module_names(parameter_names: Iterable[str]) -> list[str]:
    """All modules that parameters of these names are in."""
    found: dict[str, None] = {}
    for name in parameter_names:
        parts = name.split('.')
        for depth in range(1, len(parts) + 1):
            found['.'.join(parts[:depth])] = None
    return list(found)
