"""The log, the event and the file about a batch that did not fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import get_rank
from mmengine.runner import Runner

from mmstable import run_view
from mmstable.batches import batch_shapes, batch_size, name_sample
from mmstable.events.machine_records import OutOfMemory
from mmstable.files import append
from mmstable.memory.activation_meter import ActivationMeter
from mmstable.memory.failure import Failure
from mmstable.memory.ladder import Rung
from mmstable.memory.oom_report import BatchFacts, describe, save_snapshot
from mmstable.messages import _
from mmstable.optim.step_sources import monitor_of

_FOLDER = 'out_of_memory'
_MOST_FILES, _MOST_SAMPLES, _MOST_SHAPES = 5, 64, 8


@dataclass
class OomCase:
    """One batch that does not fit.

    Args:
        record (StepRecord): The step.
        failure (Failure): The first error.
        facts (BatchFacts): The batch.
        ladder (list[Rung]): What can be tried, the mildest first.
        meter (ActivationMeter): What was measured.
        modules (list[str]): What could compute again.
        device (torch.device): Where the model is.
        reasons (list[str]): Why remedies could not be tried. Defaults to [].
    """

    record: Any
    failure: Failure
    facts: BatchFacts
    ladder: list[Rung]
    meter: ActivationMeter
    modules: list[str]
    device: torch.device
    reasons: list[str] = field(default_factory=list)


class OomTeller:
    """Tells of one run's out-of-memory errors.

    Args:
        runner (Runner): The runner.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._files = 0

    @property
    def writes(self) -> bool:
        """Whether there will be another file."""
        return self._files < _MOST_FILES

    def say(self, text: str) -> None:
        """Log a warning, on the rank that it happens to.

        Args:
            text (str): What to say.
        """
        self._runner.logger.warning(f'mmstable: {text}')

    def facts(self, batch: Any, iteration: int) -> BatchFacts:
        """What can be said of a batch.

        Args:
            batch (Any): What the data loader gave.
            iteration (int): Its iteration.
        """
        size = batch_size(batch)
        first = range(min(size, _MOST_SAMPLES))
        named = [name_sample(batch, index) for index in first]
        wrappers = run_view.wrappers(self._runner).values()
        return BatchFacts(
            iteration=iteration,
            shapes=shorten(batch_shapes(batch)),
            samples=[name for name in named if name],
            size=size,
            accumulation=max(map(run_view.accumulative_counts, wrappers)),
        )

    def write(self, case: OomCase, rung: str) -> str | None:
        """Write the report, if there are not too many of them.

        Args:
            case (OomCase): The batch that did not fit.
            rung (str): What has helped, in words.
        """
        if not self.writes:
            return None
        self._files += 1
        folder = run_view.stability_folder(self._runner) / _FOLDER
        name = f'iter_{case.facts.iteration}'
        if get_rank() > 0:
            name += f'.rank{get_rank()}'
        path = Path(folder, f'{name}.txt')
        try:
            folder.mkdir(parents=True, exist_ok=True)
            snapshot = save_snapshot(case.device, path.with_suffix('.pickle'))
            text = describe(
                case.failure,
                case.facts,
                rung,
                case.meter,
                snapshot,
                case.modules,
            )
            with open(path, 'w', encoding='utf-8', opener=append) as file:
                file.write(text)
        except OSError as error:
            # A full disk must not end a run that has just been saved.
            self.say(str(error))
            return None
        return str(path)

    def emit(
        self,
        failure: Failure,
        facts: BatchFacts,
        rung: str,
        device: torch.device,
        **more: Any,
    ) -> None:
        """Tell all hooks.

        Args:
            failure (Failure): The first error.
            facts (BatchFacts): The batch.
            rung (str): What was done.
            device (torch.device): Where the model is.
            **more: Other fields of the event.
        """
        fields = dict(
            phase=failure.phase,
            rung=rung,
            rank=get_rank(),
            shapes=tuple(facts.shapes),
            samples=tuple(facts.samples),
            device=str(device),
            requested=failure.requested,
            allocated=failure.allocated,
            reserved=failure.reserved,
            peak=failure.peak,
        )
        event = OutOfMemory.now(facts.iteration, **{**fields, **more})
        monitor_of(self._runner).emit(self._runner, event)


def shorten(shapes: tuple[str, ...]) -> list[str]:
    """At most some of the shapes of a batch."""
    if len(shapes) <= _MOST_SHAPES:
        return list(shapes)
    return [*shapes[:_MOST_SHAPES], '...']


def file_hint(path: str | None) -> str:
    """Where the report is, if there is one."""
    return '' if path is None else _(' What to change: {path}', path=path)
