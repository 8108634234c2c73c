"""The one place where a batch meets the model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mmengine.runner import Runner

from mmstable import run_view
from mmstable.loops.memory_ladder import MemoryLadder
from mmstable.memory.out_of_memory import is_out_of_memory
from mmstable.optim.before_step import before_step
from mmstable.run_state.rng import plain_rng, raw_rng


@dataclass
class StepRecord:
    """A training step, as much of it as is needed to do it again.

    Args:
        iteration (int): The iteration it belongs to, counted from 1.
        batch (Any): What the data loader gave.
        raw_rng (tuple, optional): The random generators before the forward
            pass; None unless somebody asked for them. Defaults to None.
        counts (list[int]): Backward passes that each wrapper had counted
            before. Defaults to [].
        is_done (bool): Whether the step came to its end. It is not while it
            runs, and stays so if it raises an exception. Defaults to False.
        has_updated (bool): Whether an optimizer has begun to change the
            weights. Defaults to False.
        is_undone (bool): Whether it has failed, and left nothing behind but
            random numbers that were drawn. Defaults to False.
    """

    iteration: int
    batch: Any
    raw_rng: tuple | None = None
    counts: list[int] = field(default_factory=list)
    is_done: bool = False
    has_updated: bool = False
    is_undone: bool = False

    @property
    def rng(self) -> dict[str, Any] | None:
        """The generators as plain data, see :func:`capture_rng`."""
        return None if self.raw_rng is None else plain_rng(self.raw_rng)


class TrainStep:
    """Runs the training step of a model on a batch.

    Args:
        runner (Runner): The runner.
        ladder (MemoryLadder, optional): What to do if memory runs out.
            Defaults to None.
    """

    def __init__(
        self, runner: Runner, ladder: MemoryLadder | None = None
    ) -> None:
        self._runner = runner
        self._ladder = ladder
        self._wrappers: list[Any] = []
        # It takes a copy of all generators in every iteration.
        self.keeps_rng = ladder is not None
        self.last: StepRecord | None = None
        self._is_frozen = False

    def freeze(self) -> None:
        """Let no step and no update begin any more, from another thread.

        That one is going to save the state as it is, and end the process.
        """
        self._is_frozen = True

    def run(self, batch: Any, iteration: int) -> Any:
        """Train on one batch; what the model's ``train_step`` gave.

        The record of it, with the batch, is kept until the next call.

        Args:
            batch (Any): What the data loader gave.
            iteration (int): The iteration it belongs to, counted from 1.
        """
        if self._is_frozen:
            _wait_for_the_end()
        runner = self._runner
        rng = raw_rng() if self.keeps_rng else None
        counts = list(map(run_view.inner_count, self._wrappers))
        record = self.last = StepRecord(iteration, batch, rng, counts)
        ladder, rung = self._ladder, None
        if ladder is not None and ladder.is_alert:
            rung = ladder.begin(batch)
        try:
            if ladder is None or rung is None:
                outputs = runner.model.train_step(
                    batch, optim_wrapper=runner.optim_wrapper
                )
            else:
                outputs = ladder.run(rung, batch)
        except Exception as error:
            if ladder is None or not is_out_of_memory(error):
                raise
            failed = error
        else:
            record.is_done = True
            return outputs
        # Not inside of `except`, which keeps all activations alive.
        outputs = ladder.survive(record, failed, rung)
        record.is_done = True
        return outputs

    def bind(self) -> None:
        """Learn the model and the wrappers of a run that begins."""
        self.last = None
        self._wrappers = list(run_view.wrappers(self._runner).values())
        if self._ladder is not None:
            self._ladder.bind()

    @contextmanager
    def watch_updates(self) -> Iterator[None]:
        """Note in the records when an optimizer begins to update."""
        ends = [
            before_step(wrapper.optimizer, self._note_update)
            for wrapper in run_view.wrappers(self._runner).values()
        ]
        try:
            yield
        finally:
            for end in ends:
                end()

    def undo_failed(self) -> None:
        """Put back what a step has changed before it failed.

        These are the buffers that forward passes write to. If weights were
        changed as well, nothing can be done.
        """
        record = self.last
        if record is None or record.is_done or record.has_updated:
            return
        # Nobody has a copy with other wrappers: then all is well only if
        # there is nothing to save.
        undone = [
            hasattr(wrapper, 'undo_failed_iteration')
            and wrapper.undo_failed_iteration()
            for wrapper in reversed(run_view.wrappers(self._runner).values())
        ]
        record.is_undone = all(undone) or (
            not run_view.saved_buffers(self._runner)
        )

    def _note_update(self, *args: Any) -> None:
        if self._is_frozen:
            _wait_for_the_end()
        if self.last is not None:
            self.last.has_updated = True


def _wait_for_the_end() -> None:
    threading.Event().wait()
