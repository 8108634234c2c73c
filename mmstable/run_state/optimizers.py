"""Optimizers: what they know of each weight, their settings, loss scales."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from mmengine.runner import Runner
from torch import Tensor

from mmstable import run_view
from mmstable.run_state.host_copy import HostCopy, HostMemory
from mmstable.run_state.optimizer_names import parameter_paths
from mmstable.run_state.part import Part, Sections
from mmstable.run_state.schedules import follows_validation, has_schedules

# What a wrapper of mmstable knows of its own past, which stays.
_COUNTS = 'safe_step'
# What mmengine calls the state of a loss scaler.
_SCALE = 'loss_scaler'
# What schedules change in a group; betas have the momentum in them.
_RATES = ('lr', 'momentum', 'betas')


class Optimizers(Part):
    """State and settings of all optimizers, and the scale of the losses."""

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

    def capture(self, runner: Runner, memory: HostMemory) -> dict[str, Any]:
        """State of each parameter, settings of groups, loss scales."""
        return {
            'states': {
                name: [
                    (param, _copy(f'{name}.{number}', state, memory))
                    for number, (param, state) in enumerate(held.state.items())
                ]
                for name, held in run_view.optimizers(runner).items()
            },
            'settings': _settings(runner),
            'scales': {
                name: copy.deepcopy(scaler.state_dict())
                for name, scaler in _scalers(runner)
            },
        }

    def restore(self, runner: Runner, state: dict[str, Any]) -> None:
        """Bring them back; parameters without a state lose theirs."""
        for name, optimizer in run_view.optimizers(runner).items():
            present = dict(optimizer.state)
            optimizer.state.clear()
            for param, saved in state['states'][name]:
                optimizer.state[param] = _restored(
                    saved, present.get(param, {})
                )
        kept = _kept_rates(runner)
        _apply(runner, copy.deepcopy(state['settings']))
        _apply(runner, kept)
        for name, scaler in _scalers(runner):
            scaler.load_state_dict(_lower_scale(scaler, state['scales'][name]))

    def load(self, runner: Runner, checkpoint: Mapping[str, Any]) -> None:
        """Load as mmengine does; without a state, optimizers start anew."""
        settings, kept = _settings(runner), _kept_rates(runner)
        if 'optimizer' in checkpoint:
            runner.optim_wrapper.load_state_dict(
                _with_counts(runner, checkpoint['optimizer'])
            )
        else:
            # Moments of weights that were replaced mislead.
            for optimizer in run_view.optimizers(runner).values():
                optimizer.state.clear()
        if not has_schedules(checkpoint):
            _apply(runner, settings)
        _apply(runner, kept)


def _copy(
    prefix: str, state: Mapping[str, Any], memory: HostMemory
) -> dict[str, Any]:
    return {
        key: memory.copy(f'{prefix}.{key}', value)
        if isinstance(value, Tensor)
        else copy.deepcopy(value)
        for key, value in state.items()
    }


def _restored(
    saved: Mapping[str, Any], present: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        key: value.restore(present.get(key))
        if isinstance(value, HostCopy)
        else copy.deepcopy(value)
        for key, value in saved.items()
    }


def _scalers(runner: Runner) -> Iterable[tuple[str, Any]]:
    for name, wrapper in run_view.wrappers(runner).items():
        scaler = run_view.loss_scaler(wrapper)
        if scaler is not None:
            yield name, scaler


def _lower_scale(scaler: Any, saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state of a scaler with the smaller scale, the present or the saved.

    A scale that has overflowed since would overflow again.
    """
    present = scaler.state_dict()
    return present if present['scale'] < saved['scale'] else saved


def _settings(runner: Runner) -> list[dict[str, Any]]:
    return [
        {k: copy.deepcopy(v) for k, v in group.items() if k != 'params'}
        for group in run_view.param_groups(runner)
    ]


def _kept_rates(runner: Runner) -> list[dict[str, Any]]:
    """For each group, the settings that a rollback leaves as they are."""
    schedulers = run_view.schedulers(runner)
    return [
        {key: group[key] for key in _RATES if key in group}
        if follows_validation(schedulers.get(name, ()))
        else {}
        for name, wrapper in run_view.wrappers(runner).items()
        for group in wrapper.param_groups
    ]


def _apply(runner: Runner, settings: list[dict[str, Any]]) -> None:
    for group, saved in zip(run_view.param_groups(runner), settings):
        group.update(saved)


def _with_counts(runner: Runner, saved: Mapping[str, Any]) -> dict[str, Any]:
    """A saved state with the counters of today, and no larger scale."""
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
    merged = {**saved, **{k: v for k, v in today.items() if k == _COUNTS}}
    scaler = run_view.loss_scaler(wrapper)
    if scaler is not None and _SCALE in saved:
        merged[_SCALE] = _lower_scale(scaler, saved[_SCALE])
    return merged
