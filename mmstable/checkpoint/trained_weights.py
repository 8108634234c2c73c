"""Does a model hold its own weights, or for a while those of its average?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mmengine.runner import Runner
from torch import Tensor

from mmstable import run_view
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
        if run_view.average_hooks(runner):
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
        hooks = run_view.average_hooks(runner) if swapped else []
        for hook in hooks:
            run_view.swap_average(hook)
        try:
            yield
        finally:
            for hook in reversed(hooks):
                run_view.swap_average(hook)


def _look(runner: Runner) -> Tensor:
    # Nothing but a swap changes weights during a validation.
    weights = [param.detach() for param in runner.model.parameters()]
    return gradient_norms(weights).nan_to_num()
