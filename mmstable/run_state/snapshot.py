"""A copy of all that a run has learned, in host memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from mmengine.runner import Runner
from torch import Tensor

from mmstable.optim.buffer_copy import can_write
from mmstable.optim.new_steps import wrappers_of
from mmstable.run_state.run_tensors import (
    learned_tensors,
    optimizers_of,
    param_groups_of,
    replace_buffer,
)
from mmstable.run_state.schedules import schedulers_of


class Snapshot:
    """Weights, buffers, averages, optimizers, loss scales and schedules.

    Its memory is used again when it is taken anew.
    """

    def __init__(self) -> None:
        self.iteration = -1
        self._tensors: dict[str, Tensor] = {}
        self._states: list[list[dict[str, Any]]] = []
        self._settings: list[dict[str, Any]] = []
        self._scales: dict[str, dict[str, Any]] = {}
        self._schedules: list[dict[str, Any]] = []

    def take(self, runner: Runner, iteration: int) -> None:
        """Copy everything, without waiting for an accelerator.

        Args:
            runner (Runner): The runner.
            iteration (int): Iterations done.
        """
        live = _flat(runner)
        kept = {
            name: _memory_for(tensor, self._tensors.get(name))
            for name, tensor in live.items()
        }
        with torch.no_grad():
            for name, tensor in live.items():
                # What is queued after this cannot overtake it.
                kept[name].copy_(tensor, non_blocking=True)
        self._tensors = kept
        self._remember_optimizers(runner)
        self._scales = {
            name: scaler.state_dict() for name, scaler in _scalers(runner)
        }
        self._schedules = [
            copy.deepcopy(one.state_dict()) for one in schedulers_of(runner)
        ]
        self.iteration = iteration

    def restore(self, runner: Runner) -> None:
        """Bring the run back to where this was taken."""
        self._restore_optimizers(runner)
        self._restore_tensors(runner)
        for name, scaler in _scalers(runner):
            scaler.load_state_dict(self._scales[name])
        for one, state in zip(schedulers_of(runner), self._schedules):
            one.load_state_dict(copy.deepcopy(state))
        for wrapper in wrappers_of(runner.optim_wrapper).values():
            wrapper.zero_grad()
            if hasattr(wrapper, 'forget'):
                wrapper.forget()

    def _restore_tensors(self, runner: Runner) -> None:
        live = _flat(runner)
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                present = live.get(name)
                if present is not None and can_write(present, tensor):
                    present.copy_(tensor)
                else:
                    replace_buffer(runner, name, tensor)

    def _remember_optimizers(self, runner: Runner) -> None:
        self._states = [
            [
                {'param': param, 'state': _without_values(state)}
                for param, state in optimizer.state.items()
            ]
            for optimizer in optimizers_of(runner)
        ]
        self._settings = [
            _settings_of(group) for group in param_groups_of(runner)
        ]

    def _restore_optimizers(self, runner: Runner) -> None:
        """Bring back the structure of the state; its values come after."""
        for optimizer, states in zip(optimizers_of(runner), self._states):
            present = dict(optimizer.state)
            optimizer.state.clear()
            for saved in states:
                optimizer.state[saved['param']] = _revived(
                    saved['state'], present.get(saved['param'], {})
                )
        for group, saved in zip(param_groups_of(runner), self._settings):
            group.update(copy.deepcopy(saved))


class _Room(NamedTuple):
    """A tensor without memory, and where it was."""

    shape: Tensor
    device: torch.device


def snapshot_bytes(runner: Runner) -> int:
    """How much memory a snapshot takes once there is optimizer state."""
    sections = learned_tensors(runner)
    size = {
        name: sum(t.numel() * t.element_size() for t in tensors.values())
        for name, tensors in sections.items()
    }
    if sections['optimizer']:
        return sum(size.values())
    # Before its first step an optimizer has none: assume that of Adam.
    weights = sum(
        param.numel() * param.element_size()
        for optimizer in optimizers_of(runner)
        for group in optimizer.param_groups
        for param in group['params']
    )
    return sum(size.values()) + 2 * weights


def _flat(runner: Runner) -> dict[str, Tensor]:
    return {
        f'{section}.{name}': tensor.detach()
        for section, tensors in learned_tensors(runner).items()
        for name, tensor in tensors.items()
    }


def _memory_for(tensor: Tensor, used: Tensor | None) -> Tensor:
    if (
        used is not None
        and used.shape == tensor.shape
        and used.dtype == tensor.dtype
    ):
        return used
    on_accelerator = tensor.device.type != 'cpu'
    # Only into pinned memory a copy can run beside the training.
    return torch.empty_like(tensor, device='cpu', pin_memory=on_accelerator)


def _scalers(runner: Runner) -> Iterator[tuple[str, Any]]:
    for name, wrapper in wrappers_of(runner.optim_wrapper).items():
        scaler = getattr(wrapper, 'loss_scaler', None)
        if scaler is not None and scaler.is_enabled():
            yield name, scaler


def _settings_of(group: dict[str, Any]) -> dict[str, Any]:
    return {
        key: copy.deepcopy(value)
        for key, value in group.items()
        if key != 'params'
    }


def _without_values(state: dict[str, Any]) -> dict[str, Any]:
    """The state of a parameter, with tensors that have no memory."""
    return {
        key: _Room(torch.empty_like(value, device='meta'), value.device)
        if isinstance(value, Tensor)
        else copy.deepcopy(value)
        for key, value in state.items()
    }


def _revived(saved: dict[str, Any], present: dict[str, Any]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for key, value in saved.items():
        if not isinstance(value, _Room):
            state[key] = copy.deepcopy(value)
            continue
        shape, device = value
        now = present.get(key)
        same = isinstance(now, Tensor) and now.shape == shape.shape
        state[key] = now if same else torch.empty_like(shape, device=device)
    return state
