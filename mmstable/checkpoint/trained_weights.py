"""Does a model hold its own weights, or for a while those of its average?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mmengine.hooks import EMAHook
from mmengine.runner import Runner
from torch import Tensor

from mmstable.numerics.grad_health import gradient_norms


class TrainedWeights:
    """Gives a model its own weights back while it is saved.

    ``EMAHook`` swaps them with their average for a validation. A checkpoint
    that is saved meanwhile would have the two in each other's place.
    """

    def __init__(self) -> None:
        self._norms: Tensor | None = None

    def before_val(self, runner: Runner) -> None:
        """Remember what they look like."""
        if _averages(runner):
            self._norms = _look(runner)

    def after_val(self) -> None:
        """They are there again."""
        self._norms = None

    @contextmanager
    def in_place(self, runner: Runner) -> Iterator[None]:
        """Swap them back, if they are swapped, for as long as this lasts."""
        swapped = self._norms is not None and not _look(runner).equal(
            self._norms
        )
        hooks = _averages(runner) if swapped else []
        for hook in hooks:
            hook._swap_ema_parameters()
        try:
            yield
        finally:
            for hook in reversed(hooks):
                hook._swap_ema_parameters()


def _averages(runner: Runner) -> list[EMAHook]:
    return [hook for hook in runner.hooks if isinstance(hook, EMAHook)]


def _look(runner: Runner) -> Tensor:
    # Nothing but a swap changes weights during a validation.
    weights = [param.detach() for param in runner.model.parameters()]
    return gradient_norms(weights).nan_to_num()
