"""Where the time goes, and why, in words."""

from __future__ import annotations

from collections.abc import Sequence

from mmstable.liveness.slow_causes import Cause, Sample
from mmstable.messages import say

# Shares that are not worth a word.
_LEAST = 0.005


def describe_profile(
    iteration: int, sample: Sample, causes: Sequence[Cause]
) -> str:
    """One line of a log.

    Args:
        iteration (int): The last one that was measured.
        sample (Sample): All that is known.
        causes (Sequence[Cause]): What makes it slow.
    """
    return say(
        'profile.line',
        iteration=iteration,
        count=sample.profile.iterations,
        milliseconds=1e3 * sample.profile.seconds,
        phases=describe_phases(sample),
        verdict=' '.join(describe_causes(sample, causes)),
    )


def describe_phases(sample: Sample) -> list[str]:
    """The share of each phase, and of the GPU."""
    profile = sample.profile
    parts = [
        say(
            'profile.part',
            name=say(f'profile_phase.{name}'),
            share=percent(profile.share(seconds)),
        )
        for name, seconds in profile.phases.items()
        if profile.share(seconds) >= _LEAST
    ]
    if sample.gpu_busy is not None:
        share = percent(sample.gpu_busy / 100)
        parts.append(say('profile.part', name='GPU', share=share))
    return parts


def describe_causes(sample: Sample, causes: Sequence[Cause]) -> list[str]:
    """A sentence for each cause; another one if there is none."""
    if not causes:
        return [say('profile.nothing')]
    return [_describe(sample, cause) for cause in causes]


def percent(share: float) -> str:
    """A share, for people."""
    return f'{100 * share:.0f} %'


def _describe(sample: Sample, cause: Cause) -> str:
    share = percent(cause.share)
    if cause.kind == 'data':
        return say('profile.data', share=share, why=_about_data(sample, cause))
    if cause.kind == 'hook':
        return say('profile.hook', share=share, name=cause.name)
    if cause.kind == 'module':
        return say('profile.module', share=share, name=cause.name)
    if cause.kind == 'backward':
        return say('profile.backward', share=share)
    if cause.kind == 'step':
        return say('profile.step', share=share)
    if cause.kind == 'straggler':
        return say(
            'profile.straggler',
            rank=cause.number,
            milliseconds=1e3 * cause.seconds,
            share=share,
            part=say(f'profile_phase.{cause.name}'),
        )
    if cause.kind == 'validation':
        return say('profile.validation', share=share)
    return say(
        'profile.rare',
        share=share,
        checkpoints=sample.between.checkpoints,
        epochs=sample.between.epochs,
    )


def _about_data(sample: Sample, cause: Cause) -> str:
    fields = dict(workers=sample.workers, wanted=cause.number)
    kernel = sample.loading.kernel
    if cause.name == 'main':
        share = sample.profile.data_cpu / max(cause.seconds, 1e-9)
        busy = percent(min(1.0, share))
        return say('profile_data.main', busy=busy, wanted=cause.number)
    if cause.name == 'busy':
        return say('profile_data.busy', cores=sample.cores, **fields)
    if cause.name == 'cores':
        return say(
            'profile_data.cores', workers=sample.workers, cores=sample.cores
        )
    if cause.name in ('disk', 'idle'):
        where = say('profile_data.kernel', function=kernel) if kernel else ''
        if cause.name == 'disk':
            return say('profile_data.disk', where=where, **fields)
        return say('profile_data.idle', where=where, **fields)
    if cause.name == 'pause':
        return say('profile_data.pause')
    if cause.name == 'starting':
        return say('profile_data.starting', workers=sample.workers)
    return say('profile_data.unknown', workers=sample.workers)
