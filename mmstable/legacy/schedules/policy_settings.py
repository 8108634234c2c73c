"""Are the settings of a policy right?  If not, say so in one clear line."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any, Callable

from mmstable.legacy.schedules.policies import Policy
from mmstable.legacy.schedules.warmup import WARMUPS
from mmstable.settings import (
    flag,
    integer,
    integers,
    is_number,
    known_settings,
    number,
    one_of,
    refuse,
)

# Arguments of every policy, which are no settings.
_PLACE = ('base', 'done', 'total')
# The policies that mmcv counts in iterations only.
BY_ITERATION = ('cyclic', 'OneCycle')
# Those that end where the training does.
NEED_LENGTH = (
    *BY_ITERATION,
    'poly',
    'CosineAnnealing',
    'FlatCosineAnnealing',
    'LinearAnnealing',
)


def find_policy(where: str, name: Any, policies: Mapping[str, Policy]) -> str:
    """The policy of this name, however it is capitalized.

    Args:
        where (str): What to call the place of the settings in an error.
        name (str): The name as configured.
        policies (Mapping[str, Policy]): What there is.
    """
    for known in policies:
        if isinstance(name, str) and known.lower() == name.lower():
            return known
    return one_of(where, 'policy', name, policies)


def check_settings(
    where: str,
    policy: str,
    function: Policy,
    settings: Mapping[str, Any],
    words: Mapping[str, str],
) -> None:
    """Refuse settings that the policy cannot do with.

    Args:
        where (str): What to call the place of the settings in an error.
        policy (str): The policy's name.
        function (Policy): The policy.
        settings (Mapping[str, Any]): By the names of a config.
        words (Mapping[str, str]): From names of a config to those of the
            function, where they differ.
    """
    where = f"{where}: policy '{policy}'"
    back = {ours: theirs for theirs, ours in words.items()}
    known = {
        back.get(name, name): parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in _PLACE
    }
    known_settings(where, settings, known)
    for name, default in known.items():
        if default is inspect.Parameter.empty and name not in settings:
            raise ValueError(f'{where} needs `{name}`.')
    given = {words.get(name, name): settings[name] for name in settings}
    _check_minimum(where, function, given, back)
    for name, value in given.items():
        if name in _CHECKS and value is not None:
            _CHECKS[name](where, back.get(name, name), value)
    _check_periods(where, given)


def check_warmup(where: str, kind: Any, length: Any, ratio: Any) -> None:
    """Refuse a warm-up that there is not."""
    one_of(where, 'warmup', kind, WARMUPS)
    integer(where, 'warmup_iters', length)
    number(where, 'warmup_ratio', ratio, above=0, at_most=1)


def check_length(
    where: str, policy: str, settings: Mapping[str, Any], total: int
) -> None:
    """Refuse a policy that ends before the training does."""
    periods = settings.get('periods')
    if periods is not None and sum(periods) < total:
        raise ValueError(
            f"{where}: policy '{policy}': `periods` {list(periods)} end at "
            f'{sum(periods)}, but the training at {total}.'
        )
    steps = settings.get('total_steps')
    if steps is not None and steps < total:
        raise ValueError(
            f"{where}: policy '{policy}': `total_steps` must be at least the "
            f'{total} iterations of the training, got {steps}.'
        )
    times = settings.get('cyclic_times', 1)
    if times > total:
        raise ValueError(
            f"{where}: policy '{policy}': `cyclic_times` must be at most the "
            f'{total} iterations of the training, got {times}.'
        )


def _check_minimum(
    where: str,
    function: Policy,
    given: Mapping[str, Any],
    back: Mapping[str, str],
) -> None:
    if 'minimum_ratio' not in inspect.signature(function).parameters:
        return
    names = ('minimum', 'minimum_ratio')
    if sum(given.get(name) is not None for name in names) != 1:
        one, other = (back.get(name, name) for name in names)
        raise ValueError(
            f'{where} needs exactly one of `{one}` and `{other}`.'
        )


def _check_periods(where: str, given: Mapping[str, Any]) -> None:
    if 'periods' not in given:
        return
    weights = given.get('restart_weights', (1,))
    if len(given['periods']) != len(weights):
        raise ValueError(
            f'{where}: `periods` and `restart_weights` must be equally many, '
            f'got {len(given["periods"])} and {len(weights)}.'
        )


def _check_list(where: str, name: str, value: Any) -> None:
    if not isinstance(value, (list, tuple)):
        refuse(where, name, 'a list of ints', value)
    integers(where, name, value)


def _check_weights(where: str, name: str, value: Any) -> None:
    is_list = isinstance(value, (list, tuple))
    if not is_list or not all(map(is_number, value)):
        refuse(where, name, 'a list of numbers', value)


def _check_ratios(where: str, name: str, value: Any) -> None:
    ratios = value if isinstance(value, (list, tuple)) else [value]
    if len(ratios) not in (1, 2) or not all(map(is_number, ratios)):
        refuse(where, name, 'a number or a pair of numbers', value)


_share = partial(number, at_least=0, at_most=1)
_CHECKS: Mapping[str, Callable[[str, str, Any], Any]] = {
    'step': integers,
    'gamma': number,
    'power': number,
    'minimum': number,
    'minimum_ratio': number,
    'start_percent': _share,
    'periods': _check_list,
    'restart_weights': _check_weights,
    'target_ratio': _check_ratios,
    'cyclic_times': integer,
    'step_ratio_up': partial(number, at_least=0, below=1),
    'anneal_strategy': partial(one_of, known=('cos', 'linear')),
    'pct_start': _share,
    'total_steps': integer,
    'div_factor': partial(number, above=0),
    'final_div_factor': partial(number, above=0),
    'three_phase': flag,
}
