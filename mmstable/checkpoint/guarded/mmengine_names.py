"""What mmengine and mmcv save: log histories, schedules, configs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mmengine.logging import HistoryBuffer
from mmengine.optim.scheduler.param_scheduler import OneCycleParamScheduler

from mmstable.checkpoint.guarded.checks import exact
from mmstable.checkpoint.guarded.errors import Refused
from mmstable.checkpoint.guarded.nodes import (
    ConfigNode,
    FunctionNode,
    HistoryNode,
    Name,
)

_HISTORY = 'mmengine.logging.history_buffer.HistoryBuffer'
_ONE_CYCLE = 'mmengine.optim.scheduler.param_scheduler.OneCycleParamScheduler'
_CONFIGS = (
    'mmengine.config.config.ConfigDict',
    'mmcv.utils.config.ConfigDict',
    'addict.addict.Dict',
)
# Functions that are saved by name, and what they become.
_FUNCTIONS: dict[tuple[str, str], Callable[..., Any] | None] = {
    # The statistics of a history: every history has them anyway.
    **{(_HISTORY, name): None for name in ('min', 'max', 'current', 'mean')},
    (_ONE_CYCLE, '_annealing_cos'): OneCycleParamScheduler._annealing_cos,
    (_ONE_CYCLE, '_annealing_linear'): (
        OneCycleParamScheduler._annealing_linear
    ),
}
_HISTORY_STATE = {'max_length', '_log_history', '_count_history'}


def find_function(text: str) -> FunctionNode | None:
    """A function by its full name, as protocol 4 writes it."""
    owner, _, name = text.rpartition('.')
    return FunctionNode(owner, name) if (owner, name) in _FUNCTIONS else None


def build_function(node: FunctionNode) -> Callable[..., Any]:
    """The real function."""
    function = _FUNCTIONS[node.owner, node.name]
    if function is None:
        raise Refused(f'{node.owner}.{node.name} outside of a history')
    return function


def _getattr(owner: Any, name: Any) -> FunctionNode:
    key = exact(owner, Name, 'an owner').text, exact(name, str, 'a name')
    if key not in _FUNCTIONS:
        raise Refused('builtins.getattr of {}, {}'.format(*key))
    return FunctionNode(*key)


def _history(*args: Any) -> HistoryNode:
    if args:
        raise Refused(f'{_HISTORY} with arguments')
    return HistoryNode()


def _fill_history(node: HistoryNode, state: Any) -> None:
    if node.state is not None:
        raise Refused('a second state of a history')
    content = dict(exact(state, dict, 'a history'))
    for function in exact(
        content.pop('statistics_methods', {}), dict, 'statistics'
    ).values():
        exact(function, FunctionNode, 'a statistic')
    if content.keys() != _HISTORY_STATE:
        raise Refused('a history with an unknown state')
    node.state = content


def build_history(
    node: HistoryNode, build: Callable[[Any], Any]
) -> HistoryBuffer:
    """The real history.

    Args:
        node (HistoryNode): Its content.
        build (Callable): Makes an array of a node.
    """
    if node.state is None:
        raise Refused('a history without content')
    longest = exact(node.state['max_length'], int, 'max_length')
    values, counts = (
        _check_series(build(node.state[key]))
        for key in ('_log_history', '_count_history')
    )
    if longest < 1 or len(values) != len(counts):
        raise Refused('a history whose parts do not fit')
    return HistoryBuffer(values[-longest:], counts[-longest:], longest)


def _check_series(series: Any) -> np.ndarray[Any, Any]:
    if type(series) is not np.ndarray or series.ndim != 1:
        raise Refused('a history of other than numbers')
    return series


def _config(content: Any = None) -> ConfigNode:
    node = ConfigNode()
    if content is not None:
        node.update(exact(content, dict, 'a config'))
    return node


def _fill_config(node: ConfigNode, state: Any) -> None:
    # The config itself: its entries were saved before.
    if state is not node:
        node.update(exact(state, dict, 'a config'))


CALLED: dict[str, Callable[..., Any]] = {
    'builtins.getattr': _getattr,
    **dict.fromkeys(_CONFIGS, _config),
}
NEW: dict[str, Callable[..., Any]] = {
    _HISTORY: _history,
    **dict.fromkeys(_CONFIGS, _config),
}
MENTIONED = (_ONE_CYCLE,)
FILLED: dict[type, Callable[[Any, Any], None]] = {
    HistoryNode: _fill_history,
    ConfigNode: _fill_config,
}
