"""What an investigation has found."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmstable.events.number_records import Verdict
from mmstable.forensics.birth import Origin
from mmstable.forensics.samples import Samples
from mmstable.forensics.singular import Point


@dataclass
class Finding:
    """Why a step was bad.

    Args:
        verdict (Verdict): The kind of cause.
        culprit (Origin, optional): The operation or tensor that it began
            with. Defaults to None.
        chain (list[Origin]): All that lies between that and the loss or the
            gradients, the earliest first. Defaults to [].
        terms (tuple[str]): The terms of the loss that it reached. Defaults
            to ().
        samples (Samples): The samples it came from. Defaults to none.
        point (Point, optional): Where the operation is undefined. Defaults
            to None.
        largest (float, optional): The value that was too large. Defaults to
            None.
        peaks (list): Modules and the largest values of their outputs, along
            the forward pass. Defaults to [].
        reason (str): Why nothing was examined. Defaults to ''.
        notes (list[str]): What limits this finding. Defaults to [].
    """

    verdict: Verdict
    culprit: Origin | None = None
    chain: list[Origin] = field(default_factory=list)
    terms: tuple[str, ...] = ()
    samples: Samples = field(default_factory=Samples)
    point: Point | None = None
    largest: float | None = None
    peaks: list[tuple[str, float]] = field(default_factory=list)
    reason: str = ''
    notes: list[str] = field(default_factory=list)
