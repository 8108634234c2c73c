"""Hear of every optimizer step of a run, once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.optim import OptimWrapperDict

from mmstable.events import StepReport


def wrappers_of(optim_wrapper: Any) -> dict[str, Any]:
    """All optimizer wrappers of a run, by name."""
    if isinstance(optim_wrapper, OptimWrapperDict):
        return dict(optim_wrapper.items())
    return {'optim_wrapper': optim_wrapper}


def reporting_wrappers(optim_wrapper: Any) -> dict[str, Any]:
    """Those that say what became of their steps, by name."""
    return {
        name: wrapper
        for name, wrapper in wrappers_of(optim_wrapper).items()
        if hasattr(wrapper, 'last_step')
    }


def window_is_open(optim_wrapper: Any) -> bool:
    """Whether gradients wait for more of their kind."""
    wrappers = wrappers_of(optim_wrapper).values()
    return not all(wrapper.should_update() for wrapper in wrappers)


def settle_steps(optim_wrapper: Any) -> None:
    """Wait for the verdict on the newest steps, and for what follows it."""
    for wrapper in wrappers_of(optim_wrapper).values():
        getattr(wrapper, 'last_step', None)


def record_losses(optim_wrapper: Any, outputs: Any) -> None:
    """Tell all wrappers of a run what their losses were made of.

    Args:
        optim_wrapper (OptimWrapper or OptimWrapperDict): Of the run.
        outputs (Mapping): What the model's ``train_step`` gave.
    """
    if not isinstance(outputs, Mapping):
        return
    for wrapper in wrappers_of(optim_wrapper).values():
        if hasattr(wrapper, 'record_losses'):
            wrapper.record_losses(outputs)


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
