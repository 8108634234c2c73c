"""Hear of every optimizer step of a run, once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.optim import OptimWrapperDict

from mmstable.events import StepReport


def name_wrappers(optim_wrapper: Any) -> dict[str, Any]:
    """All optimizer wrappers of a run, by name."""
    if isinstance(optim_wrapper, OptimWrapperDict):
        return dict(optim_wrapper.items())
    return {'optim_wrapper': optim_wrapper}


def reporting_wrappers(optim_wrapper: Any) -> dict[str, Any]:
    """Those that say what became of their steps, by name."""
    return {
        name: wrapper
        for name, wrapper in name_wrappers(optim_wrapper).items()
        if hasattr(wrapper, 'last_step')
    }


class NewSteps:
    """The steps that have happened since the last look.

    Args:
        sources (Mapping): Objects with a ``last_step``, by name.
    """

    def __init__(self, sources: Mapping[str, Any]) -> None:
        self._sources = dict(sources)
        self._seen = {
            name: source.last_step for name, source in self._sources.items()
        }

    def __iter__(self) -> Iterator[tuple[str, StepReport]]:
        for name, source in self._sources.items():
            report = source.last_step
            # One step may stand for several iterations.
            if report is not None and report is not self._seen[name]:
                self._seen[name] = report
                yield name, report
