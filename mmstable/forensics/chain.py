"""Which births have reached the loss, and which one is to blame?"""

from __future__ import annotations

from collections.abc import Iterable

from mmstable.forensics.birth import Origin


def follow(ends: Iterable[Origin]) -> list[Origin]:
    """All that bad values come from, the earliest first.

    Args:
        ends (Iterable): Where those of the loss, or of the gradients, come
            from.
    """
    found: dict[int, Origin] = {}
    waiting = list(ends)
    while waiting:
        one = waiting.pop()
        if one.order not in found:
            found[one.order] = one
            waiting.extend(one.parents)
    return [found[order] for order in sorted(found)]


def find_culprit(chain: list[Origin]) -> Origin | None:
    """The earliest one that nobody has written down on purpose.

    A softmax over a row that is masked with -Inf everywhere is to blame, the
    mask is not.

    Args:
        chain (list): What :func:`follow` gave.
    """
    return next(
        (one for one in chain if not one.is_intended),
        chain[0] if chain else None,
    )
