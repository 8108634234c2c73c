"""One kind of state: where it is in a runner, and where in a checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from mmengine.runner import Runner
from torch import Tensor

from mmstable.run_state.host_copy import HostMemory

# Names of tensors by section, both as in a checkpoint.
Sections = dict[str, dict[str, Tensor]]


class Part(ABC):
    """A part of what a run has learned."""

    def tensors(self, runner: Runner) -> Sections:
        """The live tensors, to look through them."""
        return {}

    @abstractmethod
    def capture(self, runner: Runner, memory: HostMemory) -> Any:
        """Everything, as data that nothing changes later."""

    @abstractmethod
    def restore(self, runner: Runner, state: Any) -> None:
        """Bring back what :meth:`capture` gave."""

    @abstractmethod
    def load(self, runner: Runner, checkpoint: Mapping[str, Any]) -> None:
        """Bring back what a checkpoint has, as strict as mmengine's resume."""
