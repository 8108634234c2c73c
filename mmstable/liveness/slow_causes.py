"""Why is training slow?  Figures in, causes out, the largest first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from mmstable.liveness.loading_watch import Loading
from mmstable.liveness.profile import Profile

# Shares of the time from which on something is a cause.
_DATA, _HOOK, _STEP, _MODULE = 0.2, 0.2, 0.3, 0.4
_STRAGGLER, _VALIDATION, _RARE = 0.15, 0.3, 0.25
# Two thirds are usual.
_BACKWARD = 0.8
# Causes that are told of.
_MOST = 3
# Workers that wait for a disk help each other, up to a point.
_MOST_TIMES, _MOST_WORKERS = 4, 32


class RankTimes(NamedTuple):
    """What a rank does before it waits for others, in seconds.

    Args:
        data (float): Waiting for data.
        forward (float): Forward pass.
        hooks (float): All hooks.
    """

    data: float
    forward: float
    hooks: float


class Between(NamedTuple):
    """What happened since the last sample.

    Args:
        seconds (float): How long ago that was. Defaults to 0.0.
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
    """All that is known of some iterations.

    Args:
        profile (Profile): Where their time goes.
        loading (Loading): How data came.
        workers (int): Workers of the training data.
        cores (int): Cores for this rank.
        between (Between): What happened since the sample before. Defaults
            to nothing.
        ranks (Sequence[RankTimes]): The times of all ranks, if they are
            known. Defaults to ().
        gpu_busy (int, optional): Percent of the time that the GPU computes.
            Defaults to None.
    """

    profile: Profile
    loading: Loading
    workers: int
    cores: int
    between: Between = Between()
    ranks: Sequence[RankTimes] = ()
    gpu_busy: int | None = None


class Cause(NamedTuple):
    """One thing that takes much of the time.

    Args:
        kind (str): 'data', 'module', 'hook', 'backward', 'step',
            'straggler', 'validation' or 'rare'.
        share (float): The part of the time that it takes.
        name (str): Of data, the state of its workers; else the hook, the
            module, or what a rank is slow in. Defaults to ''.
        number (int): Of data, the workers that would do; or the slow rank.
            Defaults to 0.
        seconds (float): What it takes of an iteration. Defaults to 0.0.
    """

    kind: str
    share: float
    name: str = ''
    number: int = 0
    seconds: float = 0.0


def find_causes(sample: Sample) -> list[Cause]:
    """What makes training slow; empty if nothing stands out.

    Args:
        sample (Sample): All that is known.
    """
    found = [
        _data(sample),
        _hook(sample.profile),
        _module(sample.profile),
        _phase(sample.profile, 'step', _STEP),
        _phase(sample.profile, 'backward', _BACKWARD),
        _straggler(sample),
        *_between(sample),
    ]
    causes = [cause for cause in found if cause is not None]
    if any(cause.kind == 'straggler' for cause in causes):
        # That is where the others wait for it.
        causes = [cause for cause in causes if cause.kind != 'backward']
    return sorted(causes, key=lambda one: -one.share)[:_MOST]


def _data(sample: Sample) -> Cause | None:
    profile, state = sample.profile, sample.loading.state
    if profile.data_share < _DATA:
        return None
    wait = profile.phases['data']
    work = max(profile.seconds - wait, 1e-9)
    if sample.workers == 0:
        # Each batch takes as long as training waits for it.
        wanted = min(max(1, math.ceil(wait / work)), sample.cores)
        state = state if state == 'pause' else 'main'
    else:
        wanted = math.ceil(sample.workers * profile.seconds / work)
        most = min(_MOST_TIMES * sample.workers, _MOST_WORKERS)
        if state == 'busy':
            most = sample.cores
        wanted = min(wanted, most)
        if state == 'busy' and wanted <= sample.workers:
            state = 'cores'
    return Cause('data', profile.data_share, state or 'unknown', wanted, wait)


def _hook(profile: Profile) -> Cause | None:
    # The slowest comes first.
    name, seconds = next(iter(profile.hooks.items()), ('', 0.0))
    if profile.share(seconds) < _HOOK:
        return None
    return Cause('hook', profile.share(seconds), name, 0, seconds)


def _module(profile: Profile) -> Cause | None:
    """The smallest part of the model that takes that much."""
    large = [
        (name.count('.'), seconds, name)
        for name, seconds in profile.modules.items()
        if profile.share(seconds) >= _MODULE
    ]
    if not large:
        return None
    _, seconds, name = max(large)
    return Cause('module', profile.share(seconds), name, 0, seconds)


def _phase(profile: Profile, name: str, least: float) -> Cause | None:
    seconds = profile.phases.get(name, 0.0)
    if profile.share(seconds) < least:
        return None
    return Cause(name, profile.share(seconds), seconds=seconds)


def _straggler(sample: Sample) -> Cause | None:
    """The rank that comes late to where all ranks wait for each other."""
    if len(sample.ranks) < 2:
        return None
    own = [sum(times) for times in sample.ranks]
    rank = own.index(max(own))
    others = [times for r, times in enumerate(sample.ranks) if r != rank]
    late = own[rank] - median(map(sum, others))
    share = sample.profile.share(late)
    if share < _STRAGGLER:
        return None
    excess = {
        name: getattr(sample.ranks[rank], name)
        - median(getattr(one, name) for one in others)
        for name in RankTimes._fields
    }
    part = max(excess, key=lambda name: excess[name])
    return Cause('straggler', share, part, rank, late)


def _between(sample: Sample) -> list[Cause | None]:
    """Causes outside of the sampled iterations."""
    known, profile = sample.between, sample.profile
    if known.seconds <= 0:
        return []
    validation = known.validation / known.seconds
    trained = known.iterations * profile.seconds
    rest = known.seconds - known.validation - trained
    rare = rest / known.seconds
    each = rest / max(1, known.iterations)
    return [
        Cause('validation', validation) if validation >= _VALIDATION else None,
        Cause('rare', rare, seconds=each) if rare >= _RARE else None,
    ]
