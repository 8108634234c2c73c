"""Weights and buffers of the model, and the averages of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmengine.runner import Runner, load_state_dict

from mmstable import run_view
from mmstable.optim.parameter_names import unwrap
from mmstable.run_state.part import Part, Sections
from mmstable.run_state.tensors import (
    Room,
    buffer_rooms,
    module_tensors,
    restore_buffers,
)


class Weights(Part):
    """Weights and all buffers of the model.

    A checkpoint has what ``model.state_dict()`` gives, which may be less: the
    rest is left as it is.
    """

    name = 'weights'

    def tensors(self, runner: Runner) -> Sections:
        """Those of the model inside DDP and the like."""
        return {'state_dict': module_tensors(unwrap(runner.model))}

    def capture(self, runner: Runner) -> dict[str, Room]:
        """What the buffers look like."""
        return buffer_rooms(unwrap(runner.model))

    def restore(self, runner: Runner, state: dict[str, Room]) -> None:
        """Give buffers their shape back."""
        restore_buffers(unwrap(runner.model), state)

    def load(self, runner: Runner, checkpoint: Mapping[str, Any]) -> None:
        """Load what is there; what is missing is a warning."""
        load_state_dict(
            run_view.saved_model(runner),
            checkpoint['state_dict'],
            strict=False,
            logger=runner.logger,
        )


class Averages(Part):
    """The averages of the weights that ``EMAHook`` keeps."""

    name = 'averages'

    def tensors(self, runner: Runner) -> Sections:
        """Those of every average, its step counter included."""
        return {
            _section(number): module_tensors(hook.ema_model)
            for number, hook in enumerate(run_view.average_hooks(runner))
        }

    def capture(self, runner: Runner) -> list[dict[str, Room]]:
        """What their buffers look like."""
        hooks = run_view.average_hooks(runner)
        return [buffer_rooms(hook.ema_model) for hook in hooks]

    def restore(self, runner: Runner, state: list[dict[str, Room]]) -> None:
        """Give buffers their shape back."""
        for hook, rooms in zip(run_view.average_hooks(runner), state):
            restore_buffers(hook.ema_model, rooms)

    def load(self, runner: Runner, checkpoint: Mapping[str, Any]) -> None:
        """Let the hooks do it, which exchange the two in the file."""
        with run_view.as_resuming(runner):
            for hook in run_view.average_hooks(runner):
                hook.after_load_checkpoint(runner, checkpoint)


def _section(number: int) -> str:
    return 'ema_state_dict' if number == 0 else f'ema{number}_state_dict'
