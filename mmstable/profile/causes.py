"""Find the causes of slow training in a sample, the largest first."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from mmengine.dist import get_world_size

from mmstable.dist.store import gather
from mmstable.io.schema import tuple_of, within
from mmstable.memory.host import usable_cores
from mmstable.messages import N_, _
from mmstable.profile.measure import WHOLE_STEP, Loading, Profile
from mmstable.state.rng import capture_rng, restore_rng

# Shares of the time from which on something is a cause. Two thirds are usual
# for the backward pass.
_LEAST = dict(
    data=0.2,
    hook=0.2,
    module=0.4,
    step=0.3,
    backward=0.8,
    straggler=0.15,
    validation=0.3,
    rare=0.25,
    transform=0.5,
)
_MOST_CAUSES = 3


class RankTimes(NamedTuple):
    """Seconds of a rank before it waits for other ranks.

    Args:
        data (float): Waiting for data.
        forward (float): Forward pass.
        hooks (float): All hooks.
    """

    data: float
    forward: float
    hooks: float


class Between(NamedTuple):
    """Work outside of samples, since the last one.

    Args:
        seconds (float): Time since then. Defaults to 0.0.
        validation (float): Seconds of validation. Defaults to 0.0.
        iterations (int): Iterations of training. Defaults to 0.
        checkpoints (int): Checkpoints that were saved. Defaults to 0.
        epochs (int): Epochs that were begun. Defaults to 0.
    """

    seconds: float = 0.0
    validation: float = 0.0
    iterations: int = 0
    checkpoints: int = 0
    epochs: int = 0


@dataclass(frozen=True)
class Sample:
    """Measurements of a few iterations.

    Args:
        profile (Profile): Where their time goes.
        loading (Loading): How data came.
        workers (int): Workers of the training data loader.
        cores (int): CPU cores for this rank.
        between (Between): Work since the sample before. Defaults to none.
        ranks (Sequence[RankTimes]): Times by rank, if known. Defaults to ().
        gpu_busy (int, optional): GPU utilization in percent. Defaults to
            None.
        transform (str): The slowest transform of the data; '' if unknown.
            Defaults to ''.
    """

    profile: Profile
    loading: Loading
    workers: int
    cores: int
    between: Between = Between()
    ranks: Sequence[RankTimes] = ()
    gpu_busy: int | None = None
    transform: str = ''


class Cause(NamedTuple):
    """A part that takes much of the time.

    Args:
        kind (str): 'data', 'module', 'hook', 'backward', 'step',
            'straggler', 'validation' or 'rare'.
        share (float): Its part of the time.
        name (str): For data, the state of the workers; else the hook, the
            module, or the part in which a rank is slow. Defaults to ''.
        number (int): For data, the number of workers to use; or the slow
            rank. Defaults to 0.
        seconds (float): Its part of an iteration. Defaults to 0.0.
    """

    kind: str
    share: float
    name: str = ''
    number: int = 0
    seconds: float = 0.0


def find_causes(sample: Sample) -> list[Cause]:
    """Find the causes of slow training; empty if nothing stands out.

    Args:
        sample (Sample): The measurements.
    """
    profile = sample.profile
    # The slowest hook comes first.
    hook, seconds = next(iter(profile.usual_hooks.items()), ('', 0.0))
    found = [
        _data(sample),
        Cause('hook', profile.share(seconds), hook, seconds=seconds),
        _module(profile),
        *(
            Cause(name, profile.share(seconds), seconds=seconds)
            for name, seconds in profile.phases.items()
            if name in ('step', 'backward')
        ),
        _straggler(sample),
        *_between(sample),
    ]
    causes = [one for one in found if one and one.share >= _LEAST[one.kind]]
    if any(cause.kind == 'straggler' for cause in causes):
        # The other ranks wait for it in the backward pass.
        causes = [cause for cause in causes if cause.kind != 'backward']
    return sorted(causes, key=lambda one: -one.share)[:_MOST_CAUSES]


def _data(sample: Sample) -> Cause:
    profile, state = sample.profile, sample.loading.state
    wait = profile.phases.get('data', 0.0)
    work = max(profile.seconds - wait, 1e-9)
    if sample.workers == 0:
        # Each batch takes as long as training waits for it.
        wanted = max(1, math.ceil(wait / work))
        state = state if state == 'pause' else 'main'
    else:
        wanted = math.ceil(sample.workers * profile.seconds / work)
        if state == 'busy' and sample.cores <= sample.workers:
            state = 'cores'
    wanted = min(wanted, sample.cores)
    return Cause('data', profile.data_share, state or 'unknown', wanted, wait)


def _module(profile: Profile) -> Cause | None:
    """Find the deepest module that takes that much."""
    large = [
        (name.count('.'), seconds, name)
        for name, seconds in profile.modules.items()
        if profile.share(seconds) >= _LEAST['module']
    ]
    if not large:
        return None
    __, seconds, name = max(large)
    return Cause('module', profile.share(seconds), name, seconds=seconds)


def _straggler(sample: Sample) -> Cause | None:
    """Find the rank that the other ranks wait for."""
    if len(sample.ranks) < 2:
        return None
    slow = max(sample.ranks, key=sum)
    rank = sample.ranks.index(slow)
    others = [times for r, times in enumerate(sample.ranks) if r != rank]
    late = sum(slow) - median(map(sum, others))
    excess = [own - median(rest) for own, *rest in zip(slow, *others)]
    part = RankTimes._fields[excess.index(max(excess))]
    share = sample.profile.share(late)
    return Cause('straggler', share, part, rank, late)


def _between(sample: Sample) -> list[Cause]:
    """Find causes outside of the sampled iterations."""
    known = sample.between
    if known.seconds <= 0:
        return []
    trained = known.iterations * sample.profile.seconds
    rest = known.seconds - known.validation - trained
    each = rest / max(1, known.iterations)
    return [
        Cause('validation', known.validation / known.seconds),
        Cause('rare', rest / known.seconds, seconds=each),
    ]


# Smaller shares are left out of the log line.
_LEAST_SHOWN = 0.005
PHASES = {
    'data': N_('data'),
    'forward': N_('forward'),
    'backward': N_('backward'),
    'step': N_('step'),
    'train_step': N_('compiled training step'),
    'hooks': N_('hooks'),
    'other': N_('other'),
}
_VALIDATION = N_(
    'Validation takes {share} of the time: raise val_interval, or '
    'validate on fewer samples.'
)
_CAUSES = {
    'data': N_('Training waits for data {share} of the time: {why}.'),
    'hook': N_('The hook {name} takes {share} of the time.'),
    'module': N_('The forward pass of {name} takes {share} of the time.'),
    'backward': N_(
        'The backward pass takes {share} of the time, where two thirds are '
        'usual: activation checkpointing recomputes there, ranks wait for '
        'each other there, and fp16 is slow on a CPU.'
    ),
    'step': N_(
        'The optimizer takes {share} of the time: try fused=True, or '
        'accumulative_counts.'
    ),
    'straggler': N_(
        'Rank {rank} is {milliseconds:.0f} ms slower than the other ranks '
        'in every iteration ({part}); they wait for it ({share} of the '
        'time).'
    ),
    'validation': _VALIDATION,
    'rare': N_(
        '{share} of the time is spent outside the sampled iterations: '
        '{checkpoints:checkpoint was|checkpoints were} saved and '
        '{epochs:epoch was|epochs were} started; save less often, set '
        'persistent_workers=True, or look for other programs on this '
        'machine.'
    ),
}
_DATA_CAUSES = {
    'main': N_(
        'num_workers=0 loads it in the training process, which computes for '
        '{busy} of that time and waits for the rest; set '
        'num_workers={wanted} and persistent_workers=True'
    ),
    'busy': N_('workers are busy on {cores:core|cores}'),
    'cores': N_(
        '{workers:worker is|workers are} busy, and the machine has only '
        '{cores:core|cores}; make the transforms cheaper, preprocess the '
        'data once, or use a machine with more cores'
    ),
    'disk': N_(
        'workers are idle on disk{where}; copy the data to a local disk or '
        'into few large files'
    ),
    'idle': N_(
        'workers are idle{where}: they compute nothing and wait for a '
        'network, a lock or a sleep in the dataset; check the dataset'
    ),
    'pause': N_(
        "mmengine's IterBasedTrainLoop sleeps for 2 s after every pass over "
        "the data; type='mmstable.SafeIterBasedTrainLoop' does not"
    ),
    'starting': N_(
        '{workers:worker is|workers are} restarted in every pass over the '
        'data; set persistent_workers=True'
    ),
    'unknown': N_('the cause is unknown (num_workers={workers})'),
}


# Where more workers help.
_HELPED = ('busy', 'disk', 'idle')


def describe_profile(
    iteration: int, sample: Sample, causes: Sequence[Cause]
) -> str:
    """Describe a sample in a line of the log.

    Args:
        iteration (int): The last iteration that was measured.
        sample (Sample): The measurements.
        causes (Sequence[Cause]): The causes of slowness.
    """
    return _(
        'Iter {iteration}: {milliseconds:.1f} ms per iteration (mean of '
        '{count}): {phases}. {verdict}',
        iteration=iteration,
        count=sample.profile.iterations,
        milliseconds=1e3 * sample.profile.seconds,
        phases=_describe_phases(sample),
        verdict=' '.join(describe_causes(sample, causes)),
    )


def _describe_phases(sample: Sample) -> list[str]:
    """Describe the share of each phase, and of the GPU."""
    profile = sample.profile
    shares = {
        _(PHASES[name]): profile.share(seconds)
        for name, seconds in profile.phases.items()
        if profile.share(seconds) >= _LEAST_SHOWN
    }
    if sample.gpu_busy is not None:
        shares['GPU'] = sample.gpu_busy / 100
    return [
        _('{name} {share}', name=name, share=percent(share))
        for name, share in shares.items()
    ]


def describe_causes(sample: Sample, causes: Sequence[Cause]) -> list[str]:
    """Describe each cause in a sentence; in one if there is none."""
    if not causes:
        return [_('Nothing stands out.')]
    return [_describe(sample, cause) for cause in causes]


def describe_validation(share: float) -> str:
    """Describe a validation that takes long; '' if it does not."""
    if share < _LEAST['validation']:
        return ''
    return _(_VALIDATION, share=percent(share))


def percent(share: float) -> str:
    """Format a share."""
    return f'{100 * share:.0f} %'


def _describe(sample: Sample, cause: Cause) -> str:
    kernel = sample.loading.kernel
    busy = sample.profile.data_cpu / max(cause.seconds, 1e-9)
    facts = dict(
        share=percent(cause.share),
        name=cause.name,
        # Of a straggler.
        rank=cause.number,
        milliseconds=1e3 * cause.seconds,
        part=_(PHASES.get(cause.name, '')),
        # Of time outside of samples.
        checkpoints=sample.between.checkpoints,
        epochs=sample.between.epochs,
        # Of data.
        busy=percent(min(1.0, busy)),
        workers=sample.workers,
        wanted=cause.number,
        cores=sample.cores,
        where=_(' ({function})', function=kernel) if kernel else '',
    )
    if cause.kind == 'data':
        why = _(_DATA_CAUSES[cause.name], **facts)
        if cause.name in _HELPED and cause.number > sample.workers:
            # More workers than cores only take turns.
            why += _('; raise num_workers {workers} -> {wanted}', **facts)
        if sample.transform:
            why += _(
                '; the slowest transform is {transform}',
                transform=sample.transform,
            )
        facts['why'] = why
    return _(_CAUSES[cause.kind], **facts)


def slowest_transform(dataset: Any) -> str:
    """Time the transforms of a dataset on its first sample.

    Args:
        dataset (Dataset): The dataset, or one around it.

    Returns:
        str: The slowest one, if it takes half of the time; else ''.
    """
    while not hasattr(dataset, 'pipeline') and hasattr(dataset, 'dataset'):
        dataset = dataset.dataset
    pipeline = getattr(dataset, 'pipeline', None)
    times: dict[str, float] = {}
    rng = capture_rng()
    # A dataset may fail in any way; training would report that.
    with suppress(Exception):
        results = dataset.get_data_info(0)
        for transform in getattr(pipeline, 'transforms', ()):
            begin = time.perf_counter()
            results = transform(results)
            spent = time.perf_counter() - begin
            name = type(transform).__name__
            times[name] = times.get(name, 0.0) + spent
    restore_rng(rng)
    if not times:
        return ''
    slowest = max(times, key=lambda name: times[name])
    share = times[slowest] / sum(times.values())
    if share < _LEAST['transform']:
        return ''
    return _('{name} ({share})', name=slowest, share=percent(share))


# Seconds. Ranks arrive together, since they train together.
_PATIENCE = 10.0
_SERIAL = itertools.count()


def gather_times(profile: Profile) -> list[RankTimes]:
    """Gather the times of all ranks for the same iterations.

    Args:
        profile (Profile): That of this rank.

    Returns:
        list[RankTimes]: By rank; empty without other ranks, or if not all of
        them have answered.
    """
    if get_world_size() == 1:
        return []
    phases = profile.phases
    # A compiled step waits for the other ranks inside.
    forward = 0.0 if WHOLE_STEP in phases else phases['forward']
    own = [phases['data'], forward, phases['hooks']]
    times = tuple_of(*[within(0)] * len(own))
    try:
        found = gather(
            f'profile/{next(_SERIAL)}',
            own,
            _PATIENCE,
            times,
            lambda words: [words[rank] for rank in sorted(words)],
            tuple_of(*[times] * get_world_size()),
        )
    except RuntimeError:
        # The store is gone.
        return []
    return [RankTimes(*one) for one in found or []]


def cores_of_rank() -> int:
    """Count the CPU cores for each rank of this machine."""
    ranks = os.environ.get('LOCAL_WORLD_SIZE', '1')
    count = int(ranks) if ranks.isdigit() else 1
    return max(1, usable_cores() // max(1, count))
