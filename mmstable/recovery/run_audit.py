"""Is anything that a run has learned not finite?"""

from __future__ import annotations

from mmengine.runner import Runner
from torch.nn import Module

from mmstable.checkpoint.audit import (
    count_infinite,
    find_poison,
    looks_like_mask,
)
from mmstable.events import Culprit
from mmstable.optim.parameter_names import unwrap
from mmstable.run_state.host_copy import HostMemory
from mmstable.run_state.run_state import RunState
from mmstable.run_state.weights import unsaved_buffers


class RunAudit:
    """Looks through a run, and knows what Inf belongs there.

    Args:
        model (Module): The model before anything is loaded into it.
    """

    def __init__(self, model: Module) -> None:
        self._infinite = count_infinite(model)
        self._known = {name for name, _ in model.named_parameters()}
        self._known |= {name for name, _ in model.named_buffers()}
        memory = HostMemory()
        self._unsaved = {
            name: memory.copy(name, buffer)
            for name, buffer in unsaved_buffers(model).items()
        }

    def find(self, runner: Runner) -> list[Culprit]:
        """Weights, buffers and optimizer state that are not finite."""
        tensors = RunState(runner).tensors()
        found = find_poison(tensors, self._infinite)
        return [one for one in found if not self._is_new_mask(one, tensors)]

    def heal(self, runner: Runner) -> None:
        """Restore what a checkpoint could not: buffers that it has not.

        Those that are not finite get the values from the start of the run,
        which a resumed run would have, too. The others stay as they are.
        """
        bad = {culprit.name for culprit in self.find(runner)}
        buffers = unsaved_buffers(unwrap(runner.model))
        for name, copy in self._unsaved.items():
            if f'state_dict.{name}' in bad:
                copy.restore(buffers.get(name))

    def _is_new_mask(self, culprit: Culprit, tensors: dict) -> bool:
        """Whether it is a mask that the model has made while it ran."""
        section, _, name = culprit.name.partition('.')
        # The copy that averages a model has the model's names behind this.
        plain = name[len('module.') :] if section != 'state_dict' else name
        return (
            culprit.kind == 'Inf'
            and section.endswith('state_dict')
            and plain not in self._known
            and looks_like_mask(tensors[section][name])
        )
