"""The state of a run: one list of parts for everything that asks for it.

====================  =================  ========  ==========  ========
part                  in a checkpoint    snapshot  rollback    resume by
====================  =================  ========  ==========  ========
weights, buffers      state_dict         yes       yes         mmengine
other buffers         (not saved)        yes       if not      (built
                                                   finite      anew)
averages of weights   ema_state_dict     yes       yes         EMAHook
optimizers, scales    optimizer          yes       yes         mmengine
schedules             param_schedulers   yes       yes, then   mmengine
                                                   catch up
random generators     mmstable           no        no          mmstable
position in the data  mmstable           no        no          mmstable
states of hooks       mmstable           no        no          the hooks
====================  =================  ========  ==========  ========

A rollback takes back what was learned. Where the run is, and what it knows of
its own past, stays: training continues with the next data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmengine.runner import Runner

from mmstable import run_view
from mmstable.run_state.host_copy import HostMemory
from mmstable.run_state.optimizers import Optimizers
from mmstable.run_state.part import Part, Sections
from mmstable.run_state.schedules import Schedules
from mmstable.run_state.snapshot import Snapshot
from mmstable.run_state.weights import Averages, Weights

PARTS: tuple[Part, ...] = (Weights(), Averages(), Optimizers(), Schedules())


class RunState:
    """What a run has learned so far.

    Args:
        runner (Runner): The runner.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def tensors(self) -> Sections:
        """The live tensors: name by section, called as in a checkpoint."""
        return {
            section: tensors
            for part in PARTS
            for section, tensors in part.tensors(self._runner).items()
        }

    def capture(self, old: Snapshot | None = None) -> Snapshot:
        """Copy everything to host memory.

        Args:
            old (Snapshot, optional): One whose memory can be used again.
                Defaults to None.
        """
        memory = HostMemory(None if old is None else old.memory)
        parts = [part.capture(self._runner, memory) for part in PARTS]
        return Snapshot(parts, memory.used)

    def restore(self, saved: Snapshot | Mapping[str, Any]) -> None:
        """Bring back a snapshot, or a checkpoint of this run.

        Args:
            saved (Snapshot or Mapping): What was captured, or the content of
                a checkpoint, which is changed.
        """
        # Backwards: a checkpoint has weights and averages in each other's
        # place, until the hooks of the averages have loaded it.
        for number, part in reversed(list(enumerate(PARTS))):
            if isinstance(saved, Snapshot):
                part.restore(self._runner, saved.parts[number])
            else:
                part.load(self._runner, saved)
        self._forget_open_step()

    def size(self) -> int:
        """Bytes that a snapshot takes once there is optimizer state."""
        tensors = self.tensors()
        size = sum(
            one.numel() * one.element_size()
            for section in tensors.values()
            for one in section.values()
        )
        if not tensors['optimizer']:
            # Before its first step an optimizer has none: assume Adam's.
            size += 2 * sum(
                param.numel() * param.element_size()
                for optimizer in run_view.optimizers(self._runner).values()
                for group in optimizer.param_groups
                for param in group['params']
            )
        return size

    def _forget_open_step(self) -> None:
        """Drop gradients and copies that belong to the replaced state."""
        for wrapper in run_view.wrappers(self._runner).values():
            wrapper.zero_grad()
            if hasattr(wrapper, 'forget'):
                wrapper.forget()
        for hook in self._runner.hooks:
            if hasattr(hook, 'forget_window'):
                hook.forget_window()
