"""Settings as lines of a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def config_lines(change: Mapping[str, Any]) -> str:
    """Lines to put into a config that inherits from the user's.

    Args:
        change (Mapping): From paths, as 'optim_wrapper.loss_scale', to
            values.
    """
    tree: dict[str, Any] = {}
    for path, value in change.items():
        *parents, name = path.split('.')
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = value
    return '\n'.join(f'{name} = {_written(v)}' for name, v in tree.items())


def _written(value: Any) -> str:
    if isinstance(value, dict):
        inner = ', '.join(f'{k}={_written(v)}' for k, v in value.items())
        return f'dict({inner})'
    return repr(value)
