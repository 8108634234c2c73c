"""Which validations of a run are done?"""

from __future__ import annotations

from typing import Callable

from mmengine.hooks import Hook
from mmengine.runner import Runner


class ValidationMark(Hook):
    """Remembers the last validation that came to a result.

    A checkpoint saved because of that result must not ask for the same
    validation again, so this runs before all other hooks.

    Args:
        on_result (Callable): Called when there is a result.
    """

    priority = 'HIGHEST'

    def __init__(self, on_result: Callable[[], None]) -> None:
        self._on_result = on_result
        self.validated = -1
        self._running = -1

    def watch(self, runner: Runner, count: int) -> None:
        """Wait for the result of the validation that starts now.

        Args:
            runner (Runner): The runner.
            count (int): Finished iterations or epochs.
        """
        self._running = count
        if self not in runner.hooks:
            runner.register_hook(self)

    def after_val_epoch(
        self, runner: Runner, metrics: dict[str, float] | None = None
    ) -> None:
        """Take note."""
        self.validated = self._running
        self._on_result()
