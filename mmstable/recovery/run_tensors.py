"""All tensors that a training run has learned, by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmengine.hooks import EMAHook
from mmengine.runner import Runner
from torch import Tensor
from torch.nn import Module

from mmstable.optim.new_steps import name_wrappers
from mmstable.optim.parameter_names import unwrap


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
    wrappers = name_wrappers(runner.optim_wrapper).values()
    return [wrapper.optimizer for wrapper in wrappers]


def _tensors_of(model: Module) -> dict[str, Tensor]:
    # Not `state_dict`: that leaves out buffers which are not persistent.
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _optimizer_tensors(
    runner: Runner, names: dict[int, str]
) -> Iterator[tuple[str, Tensor]]:
    wrappers = name_wrappers(runner.optim_wrapper)
    for wrapper_name, wrapper in wrappers.items():
        prefix = f'{wrapper_name}.' if len(wrappers) > 1 else ''
        states = wrapper.optimizer.state.items()
        for index, (param, state) in enumerate(states):
            owner = names.get(id(param), str(index))
            for key, value in state.items():
                if isinstance(value, Tensor):
                    yield f'{prefix}{owner}.{key}', value
