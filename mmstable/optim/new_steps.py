"""Hear of every optimizer step of a run, once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.runner import Runner

from mmstable import run_view
from mmstable.events import StepReport


def reporting_wrappers(runner: Runner) -> dict[str, Any]:
    """Those that say what became of their steps, by name."""
    return {
        name: wrapper
        for name, wrapper in run_view.wrappers(runner).items()
        if hasattr(wrapper, 'last_step')
    }


def record_losses(runner: Runner, outputs: Any) -> None:
    """Tell all wrappers of a run what their losses were made of.

    Args:
        runner (Runner): The runner.
        outputs (Mapping): What the model's ``train_step`` gave.
    """
    if not isinstance(outputs, Mapping):
        return
    for wrapper in run_view.wrappers(runner).values():
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
