"""One kind of state: where it is in a runner, and where in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmengine.runner import Runner
from torch import Tensor

Sections = dict[str, dict[str, Tensor]]


class Part:
    """A part of what a run has learned.

    A snapshot copies :meth:`tensors` and keeps what :meth:`capture` gives. To
    restore it, :meth:`restore` puts the structure back, then the tensors get
    their values. A checkpoint is mmengine's, and :meth:`load` is as strict
    with it as mmengine is when it resumes.
    """

    name: str

    def tensors(self, runner: Runner) -> Sections:
        """The live tensors: name by section, called as in a checkpoint."""
        return {}

    def capture(self, runner: Runner) -> Any:
        """All else, as data that nothing changes later."""
        return None

    def restore(self, runner: Runner, state: Any) -> None:
        """Bring back what :meth:`capture` gave, without values of tensors."""

    def load(self, runner: Runner, checkpoint: Mapping[str, Any]) -> None:
        """Bring back what a checkpoint of this run has."""
