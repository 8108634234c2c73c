"""Read every section of a checkpoint dry, before a run is resumed from it.

mmengine checks nothing that it loads: a wrong type is found by whatever uses
it first, in the middle of the training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from mmengine.logging import HistoryBuffer
from torch import Tensor

from mmstable.events.monitor import SAVED_STATES, StepTally
from mmstable.io.schema import (
    Check,
    anything,
    boolean,
    count,
    fields,
    integer,
    list_of,
    mapping_of,
    number_or_inf,
    optional,
    text,
    within,
)
from mmstable.messages import short_repr

_INF = float('inf')
_FLOAT32 = within(-3.4e38, 3.4e38)


def check_sections(checkpoint: Mapping[str, Any]) -> None:
    """Check what a resumed run reads, apart from the weights' values.

    Args:
        checkpoint (Mapping): The checkpoint.

    Raises:
        ValueError: If there is something that no run has saved.
    """
    fields(_SECTIONS)(dict(checkpoint))


def scalar(value: Any) -> float:
    """A number of float32, also in a tensor or an array of one."""
    return _FLOAT32(_unwrap(value))


def _unwrap(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_meta:
        # A view of a large tensor, whose values are not read for an audit.
        return 0
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        is_one = getattr(value, 'numel', lambda: value.size)() == 1
        value = value.item() if is_one else value
    return value


def _setting(value: Any) -> Any:
    """A number, or what Adafactor has for a rate: None."""
    known = _unwrap(value)
    if known is None or isinstance(known, bool) or known in (_INF, -_INF):
        return known
    return _FLOAT32(known)


def _settings(value: Any) -> Any:
    # Adafactor has two values of eps, and schedules of other projects lists.
    if isinstance(value, (list, tuple)):
        return list_of(_setting)(value)
    return _setting(value)


def _flag(value: Any) -> Any:
    # torch chooses for itself where it is None.
    known = _unwrap(value)
    is_bit = isinstance(known, (int, float)) and known in (0, 1)
    return optional(boolean)(bool(known) if is_bit else known)


def _best(value: Any) -> float:
    # A metric may be infinite.
    return number_or_inf(_unwrap(value))


def _steps(value: Any) -> float:
    # A tensor in most optimizers.
    return within(0, 2**53)(scalar(value))


def _moment(value: Any) -> Any:
    # A tensor, or whatever an optimizer has in its place; None or 0 if it
    # has had no gradient.
    is_none_yet = type(value) in (int, float) and value == 0
    if isinstance(value, (int, float, str, bytes)) and not is_none_yet:
        raise ValueError(f'must be a tensor, got {short_repr(value)}')
    return value


def _parameter(value: Any) -> int | str:
    if type(value) not in (int, str):
        raise ValueError(f'must be a number or a name, {short_repr(value)}')
    return value


def _history(value: Any) -> Any:
    # mmengine leaves out whatever is none.
    series = value.data if isinstance(value, HistoryBuffer) else ()
    if any(one.dtype.kind not in 'biuf' for one in series):
        raise ValueError('must be a history of numbers')
    return value


def _message_hub(value: Any) -> dict[str, Any]:
    hub = fields(
        dict(
            log_scalars=mapping_of(text(), _history),
            runtime_info=mapping_of(text(), anything),
            resumed_keys=mapping_of(text(), boolean),
        )
    )(value)
    missing = {'log_scalars', 'runtime_info', 'resumed_keys'} - hub.keys()
    if missing:
        raise ValueError(f'must have {", ".join(sorted(missing))}')
    info = hub['runtime_info']
    # mmengine compares metrics with those that have a file.
    files = [key for key in info if key.startswith('best_ckpt')]
    scores = ['best_score', *(f'best_score{key[9:]}' for key in files)]
    fields(dict.fromkeys(scores, _best))(info)
    for key, is_resumed in hub['resumed_keys'].items():
        if not is_resumed and (key in hub['log_scalars'] or key in info):
            raise ValueError(f'`resumed_keys`: {short_repr(key)} is saved')
    return hub


def _numbers(check: Check, names: str) -> dict[str, Check]:
    return dict.fromkeys(names.split(), check)


_GROUP = fields(
    {
        'params': list_of(_parameter),
        'betas': optional(list_of(_setting)),
        'eps': _settings,
        **_numbers(
            _setting,
            'lr initial_lr momentum initial_momentum weight_decay dampening '
            'alpha rho lambd t0 lr_decay momentum_decay',
        ),
        **_numbers(
            _flag,
            'nesterov amsgrad maximize foreach fused capturable '
            'differentiable centered decoupled_weight_decay',
        ),
    }
)


def _group(value: Any) -> dict[str, Any]:
    group = _GROUP(value)
    if 'params' not in group:
        raise ValueError('must have `params`')
    return group


_SCALER = fields(
    {
        **_numbers(
            number_or_inf,
            'scale cur_scale growth_factor backoff_factor min_scale max_scale',
        ),
        **_numbers(count, '_growth_tracker growth_interval patience'),
    }
)
# As torch's optimizers name it, and most others.
_STATE = {
    'step': _steps,
    **_numbers(
        _moment,
        'exp_avg exp_avg_sq max_exp_avg_sq exp_inf momentum_buffer square_avg '
        'grad_avg',
    ),
}
_OPTIMIZER = fields(
    dict(
        state=mapping_of(_parameter, fields(_STATE)),
        param_groups=list_of(_group),
        safe_step=StepTally.saved,
        loss_scaler=_SCALER,
    )
)


def _optimizer(value: Any) -> Any:
    is_single = not isinstance(value, dict) or 'param_groups' in value
    wrappers = (
        {'': value} if is_single else mapping_of(text(), anything)(value)
    )
    if not wrappers:
        raise ValueError('must have `param_groups`')
    for one in wrappers.values():
        if 'param_groups' not in _OPTIMIZER(one):
            raise ValueError('must have `param_groups`')
    return value


_SCHEDULE = fields(
    {
        'param_name': text(),
        'by_epoch': boolean,
        'base_values': list_of(_setting),
        '_last_value': list_of(_setting),
        **_numbers(
            lambda value: integer(-1)(_unwrap(value)), 'last_step _global_step'
        ),
        **_numbers(_setting, 'begin end'),
        **_numbers(
            _settings,
            'gamma factor start_factor end_factor total_iters power '
            'eta_min T_max step_size total_steps',
        ),
    }
)


def _schedules(value: Any) -> Any:
    check = list_of(_SCHEDULE)
    is_dict = isinstance(value, dict)
    return (mapping_of(text(), check) if is_dict else check)(value)


_SECTIONS: dict[str, Check] = {
    'meta': fields(
        dict(
            epoch=count,
            iter=count,
            seed=optional(lambda seed: integer(0, 2**32 - 1)(_unwrap(seed))),
            fp16=optional(fields(dict(loss_scaler=optional(_SCALER)))),
        )
    ),
    'message_hub': _message_hub,
    'optimizer': _optimizer,
    'param_schedulers': _schedules,
    'state_dict': mapping_of(text(), anything),
    'ema_state_dict': mapping_of(text(), anything),
    'mmstable': fields(SAVED_STATES),
}
