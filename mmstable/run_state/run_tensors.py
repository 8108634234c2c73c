"""All tensors that a training run has learned, by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from mmengine.hooks import EMAHook
from mmengine.runner import Runner
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mmstable.optim.new_steps import wrappers_of
from mmstable.optim.parameter_names import unwrap

# Other sparse layouts are for tables, and torch cannot write to them.
_READABLE = (torch.strided, torch.sparse_coo)


def learned_tensors(runner: Runner) -> dict[str, dict[str, Tensor]]:
    """The live tensors of a run, in sections as in a checkpoint.

    Args:
        runner (Runner): The runner.

    Returns:
        dict: Section to name to tensor: ``state_dict`` for weights and
        buffers, ``ema_state_dict`` for those of their average, ``optimizer``
        for the state of all optimizers.
    """
    model = unwrap(runner.model)
    sections = {'state_dict': _tensors_of(model)}
    for number, average in enumerate(averaged_models(runner)):
        name = 'ema_state_dict' if number == 0 else f'ema{number}_state_dict'
        sections[name] = _tensors_of(average)
    names = {id(param): name for name, param in model.named_parameters()}
    sections['optimizer'] = dict(_optimizer_tensors(runner, names))
    return sections


def averaged_models(runner: Runner) -> list[Module]:
    """The averages of the model that hooks keep."""
    return [
        hook.ema_model
        for hook in runner.hooks
        if isinstance(hook, EMAHook) and hasattr(hook, 'ema_model')
    ]


def optimizers_of(runner: Runner) -> list[Any]:
    """The optimizers of all wrappers."""
    wrappers = wrappers_of(runner.optim_wrapper).values()
    return [_holder_of_state(wrapper.optimizer) for wrapper in wrappers]


def param_groups_of(runner: Runner) -> list[dict[str, Any]]:
    """All groups that schedules move, mmengine's base setting included."""
    wrappers = wrappers_of(runner.optim_wrapper).values()
    return [group for wrapper in wrappers for group in wrapper.param_groups]


def replace_buffer(runner: Runner, name: str, value: Tensor) -> None:
    """Put a buffer in the place of one that has another shape by now.

    Args:
        runner (Runner): The runner.
        name (str): Its section in :func:`learned_tensors`, and its name.
        value (Tensor): A copy of this.
    """
    section, _, path = name.partition('.')
    if section != 'state_dict':
        return
    model = unwrap(runner.model)
    owner, _, leaf = path.rpartition('.')
    module = model.get_submodule(owner)
    if leaf in module._buffers:
        present = module._buffers[leaf]
        device = value.device if present is None else present.device
        module._buffers[leaf] = value.clone().to(device)


def _holder_of_state(optimizer: Optimizer) -> Optimizer:
    # ZeroRedundancyOptimizer has another one inside, which has the state.
    inner = getattr(optimizer, 'optim', None)
    return inner if isinstance(inner, Optimizer) else optimizer


def _tensors_of(model: Module) -> dict[str, Tensor]:
    # Not `state_dict`: that leaves out buffers which are not persistent.
    found = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        name: tensor
        for name, tensor in found.items()
        if tensor.layout in _READABLE
    }


def _optimizer_tensors(
    runner: Runner, names: dict[int, str]
) -> Iterator[tuple[str, Tensor]]:
    wrappers = wrappers_of(runner.optim_wrapper)
    for wrapper_name, wrapper in wrappers.items():
        prefix = f'{wrapper_name}.' if len(wrappers) > 1 else ''
        states = _holder_of_state(wrapper.optimizer).state.items()
        for index, (param, state) in enumerate(states):
            owner = names.get(id(param), str(index))
            for key, value in state.items():
                if isinstance(value, Tensor):
                    yield f'{prefix}{owner}.{key}', value
