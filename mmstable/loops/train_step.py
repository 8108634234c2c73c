"""The one place where a batch meets the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmengine.runner import Runner

from mmstable.optim.new_steps import record_losses
from mmstable.run_state.rng import plain_rng, raw_rng


@dataclass
class StepRecord:
    """A training step, as much of it as is needed to do it again.

    Args:
        iteration (int): The iteration it belongs to, counted from 1.
        batch (Any): What the data loader gave.
        raw_rng (tuple, optional): The random generators before the forward
            pass; None unless somebody asked for them. Defaults to None.
        is_done (bool): Whether the step came to its end. It is not while it
            runs, and stays so if it raises an exception. Defaults to False.
    """

    iteration: int
    batch: Any
    raw_rng: tuple | None = None
    is_done: bool = False

    @property
    def rng(self) -> dict[str, Any] | None:
        """The generators as plain data, see :func:`capture_rng`."""
        return None if self.raw_rng is None else plain_rng(self.raw_rng)


class TrainStep:
    """Runs the training step of a model on a batch.

    Args:
        runner (Runner): The runner.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        # It takes a copy of all generators in every iteration.
        self.keeps_rng = False
        self.last: StepRecord | None = None

    def run(self, batch: Any, iteration: int) -> Any:
        """Train on one batch; what the model's ``train_step`` gave.

        The record of it, with the batch, is kept until the next call.

        Args:
            batch (Any): What the data loader gave.
            iteration (int): The iteration it belongs to, counted from 1.
        """
        runner = self._runner
        rng = raw_rng() if self.keeps_rng else None
        record = self.last = StepRecord(iteration, batch, rng)
        outputs = runner.model.train_step(
            batch, optim_wrapper=runner.optim_wrapper
        )
        record_losses(runner, outputs)
        record.is_done = True
        return outputs
