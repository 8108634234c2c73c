"""What is left to say when a run is given up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.runner import Runner

from mmstable.checkpoint.resume_hint import resume_command_for
from mmstable.events import Intervention
from mmstable.events.samples import read_lr, read_scale
from mmstable.optim.new_steps import wrappers_of
from mmstable.recovery.diagnosis import FILE_NAME, Diagnosis
from mmstable.recovery.from_checkpoint import last_good_checkpoint
from mmstable.recovery.guard_text import describe_stop, give_advice


def diagnose(
    runner: Runner,
    stop: Intervention,
    rollbacks: Sequence[Intervention],
    rollback_count: int,
    counts: Mapping[str, Mapping[str, int]],
) -> Diagnosis:
    """Collect what its owner has to know. A collective call.

    Args:
        runner (Runner): The runner.
        stop (Intervention): The last one.
        rollbacks (Sequence[Intervention]): What this process tried before.
        rollback_count (int): How often the run has gone back in all.
        counts (Mapping): Steps applied and skipped, by wrapper.
    """
    good = last_good_checkpoint(runner, stop.since)
    path = None if good is None else str(good.path)
    resume = None if path is None else resume_command_for(runner, path)
    wrappers = {
        name: {**counts.get(name, {}), **_rates_of(wrapper)}
        for name, wrapper in wrappers_of(runner.optim_wrapper).items()
    }
    first = next(iter(wrappers.values()))
    advice = give_advice(stop.fault, first['lr'])
    return Diagnosis(
        stop=stop,
        rollbacks=tuple(rollbacks),
        wrappers=wrappers,
        checkpoint=path,
        resume=resume,
        advice=tuple(advice),
        text=describe_stop(
            stop,
            rollback_count,
            advice,
            resume,
            str(diagnosis_folder(runner) / FILE_NAME),
        ),
    )


def diagnosis_folder(runner: Runner) -> Path:
    """Where the diagnosis goes: next to the event file."""
    return Path(runner.log_dir, 'stability')


def _rates_of(wrapper: Any) -> dict[str, float | None]:
    return {'lr': read_lr(wrapper), 'loss_scale': read_scale(wrapper)}
