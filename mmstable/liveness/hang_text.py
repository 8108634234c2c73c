"""What is said about a run that hangs."""

from __future__ import annotations

from collections.abc import Mapping

from mmstable.liveness.peers import RankStatus, behind
from mmstable.messages import _

# Ranks of a kind that are told of.
_MOST = 8


def describe_ranks(ranks: Mapping[int, RankStatus | None]) -> list[str]:
    """One clause for each rank, the one that the others wait for first.

    Args:
        ranks (Mapping): Their status; None for those that say nothing.
    """
    known = [status for status in ranks.values() if status is not None]
    silent = sorted(rank for rank, status in ranks.items() if status is None)
    last = behind(known)
    known.sort(key=lambda one: (one.rank != last, one.rank))
    waits_for = last is not None or bool(silent)
    clauses = [
        _(
            'rank {rank} says nothing: it holds the lock of Python, is '
            'stopped or gone, or is not late yet',
            rank=rank,
        )
        for rank in silent[:_MOST]
    ]
    for status in known[:_MOST]:
        # Without a count of calls the phase is all that is known.
        place = status.waits_in or (status.phase if status.begun < 0 else '')
        if place and status.rank != last and waits_for:
            clauses.append(
                _(
                    'rank {rank} waits for it in {collective}',
                    rank=status.rank,
                    collective=place,
                )
            )
        else:
            clauses.append(_describe(status))
    left = len(ranks) - len(clauses)
    return (
        [*clauses, _('and {count} more ranks', count=left)]
        if left
        else clauses
    )


def _describe(status: RankStatus) -> str:
    return _(
        "rank {rank} has been in '{phase}' for {seconds:.0f} s, after "
        'iteration {iteration}{where}',
        rank=status.rank,
        phase=status.phase,
        seconds=status.seconds,
        iteration=status.iteration,
        where=status.where,
    )
