"""The times of all ranks, without a collective call."""

from __future__ import annotations

import itertools
import os

from mmengine.dist import get_world_size

from mmstable.checked_json import number, tuple_of
from mmstable.distributed.store import gather
from mmstable.liveness.profile import WHOLE_STEP, Profile
from mmstable.liveness.slow_causes import RankTimes
from mmstable.memory.host_limit import usable_cores

# Ranks come here together, since they train together.
_PATIENCE = 10.0
_SERIAL = itertools.count()


def gather_times(profile: Profile) -> list[RankTimes]:
    """What each rank did in the same iterations.

    Args:
        profile (Profile): That of this rank.

    Returns:
        list[RankTimes]: By rank; empty if there is one only, or if not all
        of them have answered.
    """
    if get_world_size() == 1:
        return []
    phases = profile.phases
    # A compiled step waits for others inside.
    forward = 0.0 if WHOLE_STEP in phases else phases['forward']
    own = [phases['data'], forward, phases['hooks']]
    times = tuple_of(*[number] * len(own))
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
    """Cores that each rank of this machine can have."""
    ranks = os.environ.get('LOCAL_WORLD_SIZE', '1')
    count = int(ranks) if ranks.isdigit() else 1
    return max(1, usable_cores() // max(1, count))
