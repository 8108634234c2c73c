"""Which samples of a batch are to blame?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable

from mmstable.batches import batch_size
from mmstable.forensics.birth import BATCH, Birth, External, Origin
from mmstable.forensics.replay import StepScene

# More replays than that tell nothing worth the time.
_MOST_LEFT_OUT = 32
# Up to so many are tried one by one, even if all of them seem to be bad: the
# output of an operation may have the size of the batch by chance.
_MOST_ALONE = 8
_INDEX = re.compile(r'\w*\[(\d+)\]')

# Whether the same fault happens with these samples alone.
IsBad = Callable[[list[int]], bool]


@dataclass(frozen=True)
class Samples:
    """Samples that a fault comes from.

    Args:
        indices (tuple[int]): Their indices in the batch; () if it is not a
            matter of samples. Defaults to ().
        names (tuple[str]): What they are called, as 'img_path=...'. Defaults
            to ().
        only_together (bool): Whether it takes others besides them, because
            a statistic of the batch couples them. Defaults to False.
        total (int): How many the batch has. Defaults to 0.
    """

    indices: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    only_together: bool = False
    total: int = 0


def find_samples(scene: StepScene, culprit: Origin, is_bad: IsBad) -> Samples:
    """Find the samples that a fault comes from.

    The samples with bad values in the output of the operation are asked
    first; a search is the fallback.

    Args:
        scene (StepScene): The step.
        culprit (Origin): What is to blame.
        is_bad (Callable): Tells whether the same fault happens with some
            samples alone.
    """
    size = batch_size(scene.batch)
    if isinstance(culprit, External):
        found, together = _of_external(culprit, size), False
    elif size < 2:
        found, together = list(range(size)), False
    else:
        found, together = _of_birth(culprit, size, is_bad)
    names = [scene.name_sample(one) for one in found]
    return Samples(tuple(found), tuple(names), together, size)


def _of_external(culprit: External, size: int) -> list[int]:
    if culprit.source != BATCH:
        return []
    match = _INDEX.match(culprit.name)
    if match is not None and int(match[1]) < size:
        return [int(match[1])]
    return list(culprit.rows)


def _of_birth(
    culprit: Birth, size: int, is_bad: IsBad
) -> tuple[list[int], bool]:
    everyone = list(range(size))
    rows = list(culprit.rows)
    others = [one for one in everyone if one not in rows]
    halves = everyone[: size // 2], everyone[size // 2 :]
    if rows and others and not is_bad(others):
        return rows, not is_bad(rows)
    if (
        len(rows) == size > _MOST_ALONE
        and all(map(is_bad, halves))
        and is_bad([0])
    ):
        return rows, False
    alone = [one for half in halves for one in _search(half, is_bad)]
    healthy = [one for one in everyone if one not in alone]
    if healthy and alone:
        # A statistic of the batch may not be defined for one sample.
        guilty = [one for one in alone if is_bad(sorted([*healthy, one]))]
        return guilty or alone, False
    if size > _MOST_LEFT_OUT:
        return alone, False
    needed = [
        one
        for one in everyone
        if not is_bad([other for other in everyone if other != one])
    ]
    return needed or alone, not alone


def _search(samples: list[int], is_bad: IsBad) -> list[int]:
    """Those that are bad alone, found by halves."""
    if not is_bad(samples):
        return []
    if len(samples) == 1:
        return samples
    half = len(samples) // 2
    return _search(samples[:half], is_bad) + _search(samples[half:], is_bad)
