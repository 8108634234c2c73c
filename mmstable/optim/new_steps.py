"""The wrappers of a run, by name."""

from __future__ import annotations

from typing import Any

from mmengine.optim import OptimWrapperDict


def wrappers_of(optim_wrapper: Any) -> dict[str, Any]:
    """All optimizer wrappers of a run, by name."""
    if isinstance(optim_wrapper, OptimWrapperDict):
        return dict(optim_wrapper.items())
    return {'optim_wrapper': optim_wrapper}
