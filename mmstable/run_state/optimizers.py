"""Optimizers: what they know of each weight, their settings, loss scales."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from mmengine.runner import Runner
from torch import Tensor

from mmstable import run_view
from mmstable.run_state.optimizer_names import parameter_paths
from mmstable.run_state.part import Part, Sections
from mmstable.run_state.schedules import has_schedules
from mmstable.run_state.tensors import Room

# What a wrapper of mmstable knows of its own past, which stays.
_COUNTS = 'safe_step'


class Optimizers(Part):
    """State and settings of all optimizers, and the scale of the losses."""

    name = 'optimizers'

    def tensors(self, runner: Runner) -> Sections:
        """The state of each parameter, by the parameter's name."""
        paths = parameter_paths(runner)
        found = {
            f'{paths[name].get(id(param), number)}.{key}': value
            for name, optimizer in run_view.optimizers(runner).items()
            for number, (param, state) in enumerate(optimizer.state.items())
            for key, value in state.items()
            if isinstance(value, Tensor)
        }
        return {'optimizer': found}

    def capture(self, runner: Runner) -> dict[str, Any]:
        """Which parameters have which state; settings; loss scales."""
        return {
            'states': {
                name: [
                    (param, {k: _kept(v) for k, v in state.items()})
                    for param, state in optimizer.state.items()
                ]
                for name, optimizer in run_view.optimizers(runner).items()
            },
            'settings': _settings(runner),
            'scales': {
                name: copy.deepcopy(scaler.state_dict())
                for name, scaler in _scalers(runner)
            },
        }

    def restore(self, runner: Runner, state: dict[str, Any]) -> None:
        """Bring back the structure of the state, and all settings."""
        for name, optimizer in run_view.optimizers(runner).items():
            present = dict(optimizer.state)
            optimizer.state.clear()
            for param, saved in state['states'][name]:
                now = present.get(param, {})
                optimizer.state[param] = {
                    key: _revived(value, now.get(key))
                    for key, value in saved.items()
                }
        _apply(runner, copy.deepcopy(state['settings']))
        for name, scaler in _scalers(runner):
            scaler.load_state_dict(state['scales'][name])

    def load(self, runner: Runner, checkpoint: Mapping[str, Any]) -> None:
        """Load as mmengine does; without a state, optimizers start anew."""
        settings = _settings(runner)
        if 'optimizer' in checkpoint:
            runner.optim_wrapper.load_state_dict(
                _with_counts(runner, checkpoint['optimizer'])
            )
        else:
            # What they know of weights that are given up misleads.
            for optimizer in run_view.optimizers(runner).values():
                optimizer.state.clear()
        if not has_schedules(checkpoint):
            _apply(runner, settings)


def _kept(value: Any) -> Any:
    return (
        Room.of(value) if isinstance(value, Tensor) else copy.deepcopy(value)
    )


def _revived(saved: Any, present: Any) -> Any:
    if not isinstance(saved, Room):
        return copy.deepcopy(saved)
    is_there = isinstance(present, Tensor) and saved.fits(present)
    return present if is_there else saved.make()


def _scalers(runner: Runner) -> Iterable[tuple[str, Any]]:
    for name, wrapper in run_view.wrappers(runner).items():
        scaler = run_view.loss_scaler(wrapper)
        if scaler is not None:
            yield name, scaler


def _settings(runner: Runner) -> list[dict[str, Any]]:
    return [
        {k: copy.deepcopy(v) for k, v in group.items() if k != 'params'}
        for group in run_view.param_groups(runner)
    ]


def _apply(runner: Runner, settings: list[dict[str, Any]]) -> None:
    for group, saved in zip(run_view.param_groups(runner), settings):
        group.update(saved)


def _with_counts(runner: Runner, saved: Mapping[str, Any]) -> dict[str, Any]:
    """A saved state with the counters of today."""
    if not run_view.has_many_wrappers(runner):
        return _with_count(runner.optim_wrapper, saved)
    wrappers = run_view.wrappers(runner)
    return {
        name: _with_count(wrappers[name], one) if name in wrappers else one
        for name, one in saved.items()
    }


def _with_count(wrapper: Any, saved: Mapping[str, Any]) -> dict[str, Any]:
    # mmengine's own wrappers have none.
    today = wrapper.state_dict() if hasattr(wrapper, 'last_step') else {}
    return {**saved, **{k: v for k, v in today.items() if k == _COUNTS}}
