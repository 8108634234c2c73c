"""What every module of a model has computed in a step, as ranges."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from mmstable.forensics.frames import Place
from mmstable.forensics.ranges import Range, measure


@dataclass
class Spread:
    """The values of many tensors.

    Args:
        dtypes (dict): Their dtypes, in order; the values mean nothing.
            Defaults to {}.
        low (float, optional): The smallest finite value. Defaults to None.
        high (float, optional): The largest finite value. Defaults to None.
        nans (int): How many are NaN. Defaults to 0.
        infs (int): How many are infinite. Defaults to 0.
    """

    dtypes: dict[str, None] = field(default_factory=dict)
    low: float | None = None
    high: float | None = None
    nans: int = 0
    infs: int = 0

    @property
    def is_bad(self) -> bool:
        """Whether some values are not finite."""
        return bool(self.nans or self.infs)

    def add(self, other: Range | Spread) -> None:
        """Widen it by another one."""
        dtypes = (
            dict.fromkeys([other.dtype])
            if isinstance(other, Range)
            else other.dtypes
        )
        self.dtypes.update(dtypes)
        lows = [one for one in (self.low, other.low) if one is not None]
        highs = [one for one in (self.high, other.high) if one is not None]
        self.low = min(lows, default=None)
        self.high = max(highs, default=None)
        self.nans += other.nans
        self.infs += other.infs

    def __str__(self) -> str:
        text = '/'.join(self.dtypes)
        if self.low is not None and self.high is not None:
            text += f' {self.low:.4g}..{self.high:.4g}'
        counts = [(self.nans, 'NaN'), (self.infs, 'Inf')]
        named = [f'{count} {name}' for count, name in counts if count]
        return text + (f' ({", ".join(named)})' if named else '')


class ModuleRanges:
    """Collects the outputs of operations by module and pass."""

    def __init__(self) -> None:
        self._spreads: dict[tuple[str, str], Spread] = {}

    def note(self, phase: str, op: str, place: Place, output: Tensor) -> None:
        """Take note of an output; a ``watch`` of ``BirthMode``."""
        key = place.module or '', phase
        self._spreads.setdefault(key, Spread()).add(measure(output))

    def below(self, name: str) -> dict[str, Spread]:
        """What a module and all in it have computed, by pass.

        Args:
            name (str): The name of the module in the model.
        """
        found: dict[str, Spread] = {}
        for (module, phase), spread in self._spreads.items():
            if not name or module == name or module.startswith(f'{name}.'):
                found.setdefault(phase, Spread()).add(spread)
        return found
