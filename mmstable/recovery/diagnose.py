"""What does the owner of a run have to know when it is stopped?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.runner import Runner

from mmstable import run_view
from mmstable.checkpoint.resume_hint import resume_command_for
from mmstable.events import Intervention
from mmstable.events.samples import read_lr, read_scale
from mmstable.recovery.configured_lr import configured_lr
from mmstable.recovery.diagnosis import FILE_NAME, Diagnosis
from mmstable.recovery.guard_text import describe_stop, give_advice
from mmstable.recovery.rollback import last_good_checkpoint


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
        rollback_count (int): Rollbacks of the whole run.
        counts (Mapping): Steps applied and skipped, by wrapper.
    """
    good = last_good_checkpoint(runner, stop.since)
    path = None if good is None else str(good.path)
    rate = configured_lr(runner)
    resume = None if path is None else resume_command_for(runner, path)
    if resume is not None and rate is not None:
        resume = f'{resume} {rate.halving_options}'
    wrappers = {
        name: {**counts.get(name, {}), **_rates_of(wrapper)}
        for name, wrapper in run_view.wrappers(runner).items()
    }
    advice = give_advice(stop.fault, rate)
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
            rate,
            str(run_view.stability_folder(runner) / FILE_NAME),
        ),
    )


def _rates_of(wrapper: Any) -> dict[str, float | None]:
    return {'lr': read_lr(wrapper), 'loss_scale': read_scale(wrapper)}
