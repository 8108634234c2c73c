"""Which remedy is tried next for a batch that does not fit?"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum

# A milder remedy that fails again and again is tried ever more rarely, up to
# so many times the calm period.
_LONGEST_CALM = 64


class Remedy(str, Enum):
    """What can be done, from the mildest to the last."""

    # Free the cache, and try again.
    RETRY = 'retry'
    # Keep activations in the memory of the host.
    OFFLOAD = 'offload'
    # Compute activations again instead of keeping them.
    RECOMPUTE = 'recompute'
    # The same, and part by part.
    CHUNK = 'chunk'
    # Train on parts of the batch, each with a loss of its own.
    SPLIT = 'split'
    # Leave the batch out.
    SKIP = 'skip'

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Rung:
    """One step of the ladder.

    Args:
        remedy (Remedy): What is done.
        parts (int): Parts of the batch. Defaults to 1.
    """

    remedy: Remedy
    parts: int = 1

    def __str__(self) -> str:
        return (
            f'{self.remedy}/{self.parts}'
            if self.parts > 1
            else (str(self.remedy))
        )


def build_ladder(
    samples: int,
    offload: bool,
    recompute: bool,
    chunk: bool,
    split: bool,
) -> list[Rung]:
    """All rungs for a batch, the mildest first.

    Args:
        samples (int): How many samples it has.
        offload (bool): Whether there is another memory to move to.
        recompute (bool): Whether modules can compute again.
        chunk (bool): Whether they can do so part by part.
        split (bool): Whether gradients may differ from the batch's.
    """
    rungs = [Rung(Remedy.RETRY)]
    if offload:
        rungs.append(Rung(Remedy.OFFLOAD))
    if recompute:
        rungs.append(Rung(Remedy.RECOMPUTE))
    parts = _doubling(samples)
    if chunk:
        rungs += [Rung(Remedy.CHUNK, count) for count in parts]
    if split:
        rungs += [Rung(Remedy.SPLIT, count) for count in parts]
    return [*rungs, Rung(Remedy.SKIP)]


def _doubling(samples: int) -> list[int]:
    parts, count = [], 2
    while count < samples:
        parts.append(count)
        count *= 2
    return [*parts, samples] if samples > 1 else []


@dataclass
class _Known:
    """What is remembered of batches of some shapes."""

    rung: Rung
    calm: int
    successes: int = 0
    # What a calm period has let us try, and may prove too mild.
    tried_from: Rung | None = None


class LadderMemory:
    """Remembers what helped, for each shape of batches.

    Args:
        calm_period (int): Batches of the same shapes that have to fit before
            a milder rung is tried.
    """

    def __init__(self, calm_period: int) -> None:
        self._calm = calm_period
        self._known: dict[Hashable, _Known] = {}

    def __bool__(self) -> bool:
        return bool(self._known)

    def start(self, shapes: Hashable) -> Rung | None:
        """Where to begin with a batch; None for no remedy.

        Args:
            shapes (Hashable): The shapes of the batch.
        """
        known = self._known.get(shapes)
        return None if known is None else known.rung

    def calm_of(self, shapes: Hashable) -> int | None:
        """How long something milder is not tried; None if unknown.

        Args:
            shapes (Hashable): The shapes of batches.
        """
        known = self._known.get(shapes)
        return None if known is None else known.calm

    def note_success(self, shapes: Hashable, ladder: Sequence[Rung]) -> None:
        """A batch came through as it began.

        Args:
            shapes (Hashable): Its shapes.
            ladder (Sequence[Rung]): All rungs for it.
        """
        known = self._known.get(shapes)
        if known is None:
            return
        known.successes += 1
        if known.successes < known.calm:
            return
        known.successes = 0
        milder = _milder(known.rung, ladder)
        if milder is None:
            del self._known[shapes]
        else:
            known.rung, known.tried_from = milder, known.rung

    def note_remedy(self, shapes: Hashable, rung: Rung) -> None:
        """A rung has helped.

        Args:
            shapes (Hashable): The shapes of the batch.
            rung (Rung): The rung.
        """
        if rung.remedy is Remedy.RETRY:
            # It was a matter of the moment.
            return
        known = self._known.get(shapes)
        calm = self._calm
        if known is not None:
            failed_again = known.tried_from is not None
            calm = known.calm * 2 if failed_again else known.calm
        calm = min(calm, self._calm * _LONGEST_CALM)
        self._known[shapes] = _Known(rung, calm)


def _milder(rung: Rung, ladder: Sequence[Rung]) -> Rung | None:
    """The rung before, if that is one to begin with."""
    index = ladder.index(rung) - 1 if rung in ladder else -1
    if index < 0 or ladder[index].remedy is Remedy.RETRY:
        return None
    return ladder[index]
