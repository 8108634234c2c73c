"""The random state of a rank, kept for a checkpoint of another rank."""

from __future__ import annotations

import time
from typing import Any, Callable

from mmengine.dist import get_rank, get_world_size
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmstable import run_view
from mmstable.checked_json import integer, optional, record
from mmstable.run_state.rng_text import pack_rng, unpack_rng


class RngKeeper(Hook):
    """Keeps the random state to resume this rank with.

    It runs after all other hooks of an iteration.
    """

    def __init__(self) -> None:
        self.iteration = -1
        self._give: Callable[[], Any] = lambda: None

    @property
    def rng(self) -> Any:
        """The state that is kept."""
        return self._give()

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
        outputs: dict | None = None,
    ) -> None:
        """Keep the newest one."""
        loop = runner.train_loop
        if hasattr(loop, 'keep_rng'):
            self.iteration, self._give = loop.iter + 1, loop.keep_rng()

    def after_val(self, runner: Runner) -> None:
        """Keep what a validation has left behind."""
        loop = run_view.built_train_loop(runner)
        if loop is not None and loop.iter == self.iteration:
            self._give = loop.keep_rng()

    def of(self, runner: Runner) -> dict[int, Any]:
        """The state of this rank, if it is that of the newest step."""
        loop = runner.train_loop
        done = loop.resume_meta() if hasattr(loop, 'resume_meta') else {}
        if done.get('iter') != self.iteration:
            return {}
        return {get_rank(): self.rng}

    def collect(
        self,
        read: Callable[[int], tuple[int, Any] | None],
        iteration: int,
        patience: float,
    ) -> dict[int, Any]:
        """The states of all ranks that have come to the same iteration.

        Args:
            read (Callable): What :func:`unpack` gave for a rank; None if that
                has said nothing yet.
            iteration (int): Iterations done.
            patience (float): Seconds to wait for the others.
        """
        known = {get_rank(): self.rng} if self.iteration == iteration else {}
        waiting = set(range(get_world_size())) - {get_rank()}
        deadline = time.monotonic() + patience
        while waiting and time.monotonic() < deadline:
            for rank in sorted(waiting):
                word = read(rank)
                if word is not None:
                    waiting.discard(rank)
                    done, state = word
                    if done == iteration:
                        known[rank] = state
            time.sleep(0.05)
        return known

    def pack(self) -> dict[str, Any]:
        """The state, and its iteration, as JSON can hold them."""
        rng = self.rng
        packed = None if rng is None else pack_rng(rng)
        return dict(iteration=self.iteration, rng=packed)


def unpack(packed: Any) -> tuple[int, Any]:
    """Iteration and state that :meth:`RngKeeper.pack` gave, checked.

    Raises:
        ValueError: If it cannot have given that.
    """
    check = record(iteration=integer(-1), rng=optional(unpack_rng))
    known = check(packed)
    return known['iteration'], known['rng']
