"""What is this entry of a saved optimizer state called?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mmengine.optim import OptimWrapperDict
from torch.nn import Module

from mmstable.events import Culprit
from mmstable.optim.new_steps import wrappers_of
from mmstable.optim.parameter_names import unwrap


def name_states(
    culprits: Iterable[Culprit], optim_wrapper: Any, model: Module
) -> list[Culprit]:
    """Culprits with the names of parameters in the place of numbers.

    A saved optimizer counts its parameters: ``optimizer.state.8.exp_avg``
    becomes ``optimizer.head.weight.exp_avg``.

    Args:
        culprits (Iterable[Culprit]): Entries of a checkpoint.
        optim_wrapper (OptimWrapper or OptimWrapperDict): Of the run.
        model (Module): Of the run.
    """
    names = {
        id(param): name for name, param in unwrap(model).named_parameters()
    }
    known: dict[str, str] = {}
    many = isinstance(optim_wrapper, OptimWrapperDict)
    for key, wrapper in wrappers_of(optim_wrapper).items():
        section = f'optimizer.{key}' if many else 'optimizer'
        groups = wrapper.optimizer.param_groups
        params = [param for group in groups for param in group['params']]
        for index, param in enumerate(params):
            name = names.get(id(param), str(index))
            known[f'{section}.state.{index}'] = f'{section}.{name}'
    return [_rename(culprit, known) for culprit in culprits]


def _rename(culprit: Culprit, known: dict[str, str]) -> Culprit:
    owner, _, entry = culprit.name.rpartition('.')
    if owner not in known:
        return culprit
    return Culprit(f'{known[owner]}.{entry}', culprit.kind)
