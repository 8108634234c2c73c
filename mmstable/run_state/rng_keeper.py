"""The random state of a rank, kept for a checkpoint of another rank."""

from __future__ import annotations

import base64
import io
from typing import Any, Callable

import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.runner import Runner


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
            self.iteration, self._give = runner.iter + 1, loop.keep_rng()

    def of(self, runner: Runner) -> dict[int, Any]:
        """The state of this rank, if it is that of the newest step."""
        loop = runner.train_loop
        done = loop.resume_meta() if hasattr(loop, 'resume_meta') else {}
        if done.get('iter') != self.iteration:
            return {}
        return {get_rank(): self.rng}

    def pack(self) -> str:
        """The state as text."""
        stream = io.BytesIO()
        torch.save((self.iteration, self.rng), stream)
        return base64.b64encode(stream.getvalue()).decode()


def unpack(word: str) -> tuple[int, Any]:
    """Iteration and state that :meth:`RngKeeper.pack` gave."""
    stream = io.BytesIO(base64.b64decode(word))
    iteration, state = torch.load(stream, weights_only=True)
    return iteration, state
