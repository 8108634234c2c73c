"""What kind of cause is this?"""

from __future__ import annotations

from mmstable.events.number_records import Verdict
from mmstable.forensics.birth import BUFFER, PARAMETER, External, Origin
from mmstable.forensics.singular import Point

# Points that say no more than that a kernel ended there.
_OF_KERNELS = ('undefined', 'by_almost_zero')


def judge(
    culprit: Origin | None, point: Point | None, is_fine_in_float32: bool
) -> Verdict:
    """The verdict on a fault that was reproduced.

    Args:
        culprit (Origin, optional): What it began with.
        point (Point, optional): Where that operation is undefined.
        is_fine_in_float32 (bool): Whether the step was in float16, and the
            same batch in float32 is fine.
    """
    if culprit is None:
        return Verdict.NOT_REPRODUCED
    if isinstance(culprit, External):
        of_model = culprit.source in (PARAMETER, BUFFER)
        return Verdict.BAD_WEIGHTS if of_model else Verdict.BAD_INPUT
    # Where a kernel overflows inside, NaN comes out of finite inputs.
    if is_fine_in_float32 and (point is None or point.name in _OF_KERNELS):
        return Verdict.FP16_OVERFLOW
    return Verdict.EXPLODING if point is None else Verdict.SINGULAR_POINT


def growing(peaks: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """The modules that a new largest value came from, one after the other.

    Args:
        peaks (list): Modules and their largest values, along the forward
            pass.
    """
    found: list[tuple[str, float]] = []
    for name, peak in peaks:
        if not found or peak > 10 * found[-1][1]:
            found.append((name, peak))
    return found[-5:]
