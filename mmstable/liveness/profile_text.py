"""Where the time goes, and why, in words."""

from __future__ import annotations

from collections.abc import Sequence

from mmstable.liveness.slow_causes import Cause, Sample
from mmstable.messages import N_, _

# Shares that are not worth a word.
_LEAST = 0.005
PHASES = {
    'data': N_('data'),
    'forward': N_('forward'),
    'backward': N_('backward'),
    'step': N_('step'),
    'train_step': N_('compiled training step'),
    'hooks': N_('hooks'),
    'other': N_('other'),
}


def describe_profile(
    iteration: int, sample: Sample, causes: Sequence[Cause]
) -> str:
    """One line of a log.

    Args:
        iteration (int): The last one that was measured.
        sample (Sample): All that is known.
        causes (Sequence[Cause]): What makes it slow.
    """
    return _(
        'Iter {iteration}: {milliseconds:.1f} ms an iteration (mean of '
        '{count}): {phases}. {verdict}',
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
        _(
            '{name} {share}',
            name=_(PHASES[name]),
            share=percent(profile.share(seconds)),
        )
        for name, seconds in profile.phases.items()
        if profile.share(seconds) >= _LEAST
    ]
    if sample.gpu_busy is not None:
        share = percent(sample.gpu_busy / 100)
        parts.append(_('{name} {share}', name='GPU', share=share))
    return parts


def describe_causes(sample: Sample, causes: Sequence[Cause]) -> list[str]:
    """A sentence for each cause; another one if there is none."""
    if not causes:
        return [_('Nothing stands out.')]
    return [_describe(sample, cause) for cause in causes]


def percent(share: float) -> str:
    """A share, for people."""
    return f'{100 * share:.0f} %'


def _describe(sample: Sample, cause: Cause) -> str:
    share = percent(cause.share)
    if cause.kind == 'data':
        return _(
            '{share} of the time waits for data: {why}.',
            share=share,
            why=_about_data(sample, cause),
        )
    if cause.kind == 'hook':
        return _(
            'The hook {name} takes {share} of the time.',
            share=share,
            name=cause.name,
        )
    if cause.kind == 'module':
        return _(
            'The forward pass of {name} takes {share} of the time.',
            share=share,
            name=cause.name,
        )
    if cause.kind == 'backward':
        return _(
            'The backward pass takes {share} of the time, where two thirds '
            'are usual: activation checkpointing computes again there, ranks '
            'wait for each other, and fp16 is slow on a CPU.',
            share=share,
        )
    if cause.kind == 'step':
        return _(
            'The optimizer takes {share} of the time: try fused=True, or '
            'accumulative_counts.',
            share=share,
        )
    if cause.kind == 'straggler':
        return _(
            'Rank {rank} comes {milliseconds:.0f} ms later than the others '
            'in every iteration, by its {part}; they wait for it ({share} of '
            'the time).',
            rank=cause.number,
            milliseconds=1e3 * cause.seconds,
            share=share,
            part=_(PHASES[cause.name]),
        )
    if cause.kind == 'validation':
        return _(
            'Validation takes {share} of the time: raise val_interval, or '
            'validate on fewer samples.',
            share=share,
        )
    return _(
        '{share} of the time goes to what no sampled iteration has: '
        '{checkpoints:checkpoint was|checkpoints were} saved and '
        '{epochs:epoch was|epochs were} begun meanwhile; save less often, '
        'set persistent_workers=True, or look for other programs on this '
        'machine.',
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
        return _(
            'num_workers=0 reads it in the training process, which computes '
            'for {busy} of that time and waits for the rest; set '
            'num_workers={wanted} and persistent_workers=True',
            busy=busy,
            wanted=cause.number,
        )
    if cause.name == 'busy':
        return _(
            'workers are busy on {cores:core|cores} (raise num_workers '
            '{workers} -> {wanted})',
            cores=sample.cores,
            **fields,
        )
    if cause.name == 'cores':
        return _(
            '{workers:worker is|workers are} busy, and '
            '{cores:core is|cores are} all there is; make the transforms '
            'cheaper, prepare the data once, or take a machine with more '
            'cores',
            workers=sample.workers,
            cores=sample.cores,
        )
    if cause.name in ('disk', 'idle'):
        where = _(' ({function})', function=kernel) if kernel else ''
        if cause.name == 'disk':
            return _(
                'workers are idle on disk{where}; copy the data to a local '
                'disk or into few large files, or raise num_workers '
                '{workers} -> {wanted}',
                where=where,
                **fields,
            )
        return _(
            'workers are idle{where}, they compute nothing and wait for a '
            'network, a lock or a sleep in the data set; look there, or '
            'raise num_workers {workers} -> {wanted}',
            where=where,
            **fields,
        )
    if cause.name == 'pause':
        return _(
            "mmengine's IterBasedTrainLoop sleeps for 2 s after every pass "
            "over the data; type='mmstable.SafeIterBasedTrainLoop' does not"
        )
    if cause.name == 'starting':
        return _(
            '{workers:worker is|workers are} started anew in every pass over '
            'the data; set persistent_workers=True',
            workers=sample.workers,
        )
    return _(
        'nobody was seen to work on it (num_workers={workers})',
        workers=sample.workers,
    )
