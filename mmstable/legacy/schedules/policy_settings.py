"""Are the settings of a policy right?  If not, say so in one clear line."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from mmstable.legacy.schedules.policies import Policy
from mmstable.legacy.schedules.warmup import WARMUPS

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
    raise ValueError(
        f'{where}: `policy` must be one of {", ".join(policies)}, got '
        f'{name!r}.{_near(str(name), policies)}'
    )


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
    for name in settings:
        if name not in known:
            raise ValueError(
                f'{where} has no setting `{name}`; it has '
                f'{", ".join(known) or "none"}.{_near(name, known)}'
            )
    for name, default in known.items():
        if default is inspect.Parameter.empty and name not in settings:
            raise ValueError(f'{where} needs `{name}`.')
    given = {words.get(name, name): settings[name] for name in settings}
    _check_minimum(where, function, given, back)
    for name, value in given.items():
        check = _CHECKS.get(name)
        if check is not None and value is not None and not check[0](value):
            raise ValueError(
                f'{where}: `{back.get(name, name)}` must be {check[1]}, got '
                f'{value!r}.'
            )
    _check_periods(where, given)


def check_warmup(where: str, kind: Any, length: Any, ratio: Any) -> None:
    """Refuse a warm-up that there is not."""
    if kind not in WARMUPS:
        raise ValueError(
            f'{where}: `warmup` must be None or one of {", ".join(WARMUPS)}, '
            f'got {kind!r}.'
        )
    if not _is_count(length):
        raise ValueError(
            f'{where}: `warmup_iters` must be a positive int, got {length!r}.'
        )
    if not (_is_number(ratio) and 0 < ratio <= 1):
        raise ValueError(
            f'{where}: `warmup_ratio` must be above 0 and at most 1, got '
            f'{ratio!r}.'
        )


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


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean '{near[0]}'?" if near else ''


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _are_counts(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) > 0
        and all(map(_is_count, value))
    )


def _are_ratios(value: Any) -> bool:
    if _is_number(value):
        return True
    return (
        isinstance(value, (list, tuple))
        and len(value) in (1, 2)
        and all(map(_is_number, value))
    )


_CHECKS = {
    'step': (
        lambda v: _is_count(v) or _are_counts(v),
        'a positive int or a list of them',
    ),
    'gamma': (_is_number, 'a number'),
    'power': (_is_number, 'a number'),
    'minimum': (_is_number, 'a number'),
    'minimum_ratio': (_is_number, 'a number'),
    'start_percent': (
        lambda v: _is_number(v) and 0 <= v <= 1,
        'between 0 and 1',
    ),
    'periods': (_are_counts, 'a list of positive ints'),
    'restart_weights': (
        lambda v: isinstance(v, (list, tuple)) and all(map(_is_number, v)),
        'a list of numbers',
    ),
    'target_ratio': (_are_ratios, 'a number or a pair of numbers'),
    'cyclic_times': (_is_count, 'a positive int'),
    'step_ratio_up': (
        lambda v: _is_number(v) and 0 <= v < 1,
        'at least 0 and below 1',
    ),
    'anneal_strategy': (lambda v: v in ('cos', 'linear'), "'cos' or 'linear'"),
    'pct_start': (lambda v: _is_number(v) and 0 <= v <= 1, 'between 0 and 1'),
    'total_steps': (_is_count, 'a positive int'),
    'div_factor': (lambda v: _is_number(v) and v > 0, 'a positive number'),
    'final_div_factor': (
        lambda v: _is_number(v) and v > 0,
        'a positive number',
    ),
    'three_phase': (lambda v: isinstance(v, bool), 'a bool'),
}
