"""Is anything that a run has learned not finite?"""

from __future__ import annotations

from mmengine.runner import Runner
from torch.nn import Module

from mmstable.checkpoint.placeholders import placeholders_of
from mmstable.events import Culprit
from mmstable.optim.parameter_names import unwrap
from mmstable.run_state.host_copy import HostMemory
from mmstable.run_state.run_state import RunState
from mmstable.run_state.weights import restore_tensors, unsaved_buffers


class RunAudit:
    """Looks through a run, and knows what NaN and Inf belong there.

    Args:
        model (Module): The model before anything is loaded into it.
    """

    def __init__(self, model: Module) -> None:
        self._placeholders = placeholders_of(model)
        self._placeholders.learn(model)
        memory = HostMemory()
        self._unsaved = {
            name: memory.copy(name, buffer)
            for name, buffer in unsaved_buffers(model).items()
        }

    def find(self, runner: Runner) -> list[Culprit]:
        """Weights, buffers and optimizer state that are not finite."""
        return self._placeholders.find_poison(RunState(runner).tensors())

    def heal(self, runner: Runner) -> None:
        """Restore what a rollback could not: buffers of no checkpoint.

        Those that are not finite get the values from the start of the run,
        which a resumed run would have, too. The others stay as they are.
        """
        self._placeholders.start_over()
        bad = {culprit.name for culprit in self.find(runner)}
        copies = {
            name: copy
            for name, copy in self._unsaved.items()
            if f'state_dict.{name}' in bad
        }
        restore_tensors(unwrap(runner.model), copies)
