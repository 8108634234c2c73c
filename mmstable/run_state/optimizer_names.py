"""What is this entry of an optimizer's state called?

In the run and in a checkpoint alike: ``optimizer.head.weight.exp_avg``, or
``optimizer.generator.head.weight.exp_avg`` where wrappers have names.
"""

from __future__ import annotations

from collections.abc import Iterable

from mmengine.runner import Runner

from mmstable import run_view
from mmstable.events import Culprit
from mmstable.optim.parameter_names import unwrap


def parameter_paths(runner: Runner) -> dict[str, dict[int, str]]:
    """By wrapper and the id of a parameter: its path in the section.

    A parameter that the model does not know is called by its number.
    """
    names = {id(p): n for n, p in unwrap(runner.model).named_parameters()}
    paths = {}
    for wrapper, optimizer in run_view.optimizers(runner).items():
        prefix = f'{wrapper}.' if run_view.has_many_wrappers(runner) else ''
        groups = optimizer.param_groups
        params = [param for group in groups for param in group['params']]
        paths[wrapper] = {
            id(param): prefix + names.get(id(param), str(number))
            for number, param in enumerate(params)
        }
    return paths


def name_saved_states(
    culprits: Iterable[Culprit], runner: Runner
) -> list[Culprit]:
    """Culprits in a checkpoint with names in the place of numbers.

    A saved optimizer counts its parameters: ``optimizer.state.8.exp_avg``
    becomes ``optimizer.head.weight.exp_avg``.

    Args:
        culprits (Iterable[Culprit]): Entries of a checkpoint.
        runner (Runner): The runner that saved it.
    """
    known: dict[str, str] = {}
    for wrapper, paths in parameter_paths(runner).items():
        saved = (
            f'{wrapper}.state'
            if run_view.has_many_wrappers(runner)
            else 'state'
        )
        for number, path in enumerate(paths.values()):
            known[f'optimizer.{saved}.{number}'] = f'optimizer.{path}'
    return [_rename(culprit, known) for culprit in culprits]


def _rename(culprit: Culprit, known: dict[str, str]) -> Culprit:
    owner, _, entry = culprit.name.rpartition('.')
    if owner not in known:
        return culprit
    return Culprit(f'{known[owner]}.{entry}', culprit.kind)
