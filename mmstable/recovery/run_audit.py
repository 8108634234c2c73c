"""Is anything that a run has learned not finite?"""

from __future__ import annotations

from mmengine.runner import Runner
from torch.nn import Module

from mmstable.checkpoint.audit import looks_like_mask, plain_name
from mmstable.checkpoint.placeholders import placeholders_of
from mmstable.events import Culprit
from mmstable.optim.parameter_names import unwrap
from mmstable.run_state.host_copy import HostMemory
from mmstable.run_state.run_state import RunState
from mmstable.run_state.weights import unsaved_buffers


class RunAudit:
    """Looks through a run, and knows what NaN and Inf belong there.

    Args:
        model (Module): The model before anything is loaded into it.
    """

    def __init__(self, model: Module) -> None:
        self._placeholders = placeholders_of(model)
        self._placeholders.learn(model)
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
        found = self._placeholders.find_poison(tensors)
        return [one for one in found if not self._is_new_mask(one, tensors)]

    def heal(self, runner: Runner) -> None:
        """Restore what a rollback could not: buffers of no checkpoint.

        Those that are not finite get the values from the start of the run,
        which a resumed run would have, too. The others stay as they are.
        """
        self._placeholders.start_over()
        bad = {culprit.name for culprit in self.find(runner)}
        buffers = unsaved_buffers(unwrap(runner.model))
        for name, copy in self._unsaved.items():
            if f'state_dict.{name}' in bad:
                copy.restore(buffers.get(name))

    def _is_new_mask(self, culprit: Culprit, tensors: dict) -> bool:
        """Whether it is a mask that the model has made while it ran."""
        section, _, name = culprit.name.partition('.')
        plain = name if section == 'state_dict' else plain_name(name)
        return (
            culprit.kind == 'Inf'
            and section.endswith('state_dict')
            and plain not in self._known
            and looks_like_mask(tensors[section][name])
        )
