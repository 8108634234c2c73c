"""Read every section of a checkpoint dry, before a run is resumed from it.

mmengine checks nothing that it loads: a wrong type is found by whatever uses
it first, in the middle of the training.

A checkpoint may also have the text of a config, which mmengine's
``Inferencer`` runs as Python. A genuine text is what ``Config.pretty_text``
writes: names that are given plain values. All others are dropped.
"""

from __future__ import annotations

import ast
import logging
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.logging import HistoryBuffer, print_log
from mmengine.registry import Registry, root
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
from mmstable.messages import _, short_repr

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
        param_groups=list_of(_GROUP),
        safe_step=StepTally.saved,
        loss_scaler=_SCALER,
    )
)


def _optimizer(value: Any) -> Any:
    if isinstance(value, dict) and 'param_groups' not in value:
        return mapping_of(text(), _OPTIMIZER)(value)
    return _OPTIMIZER(value)


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


_LONGEST, _DEEPEST = 1 << 20, 40
# What mmengine looks up in a registry, and where.
_TYPE_KEYS = ('type', 'constructor', 'runner_type')
_SCOPE_KEYS = ('_scope_', 'default_scope')
_F_STRING = re.compile(r"""\b[rR]?[fF][rR]?["']""")
_PLAIN = (str, int, float, bool, type(None))


def drop_foreign_configs(sections: Iterable[dict[str, Any]]) -> None:
    """Take out what would run code, or import modules, in config texts.

    Args:
        sections (Iterable[dict]): Parts of a checkpoint that may have a
            config text, changed in place.
    """
    notes: set[str] = set()
    for section in sections:
        if 'cfg' not in section:
            continue
        text = plain_config(section['cfg'])
        if text is None:
            del section['cfg']
            notes.add(
                _(
                    'the config text in the checkpoint is left out: it is '
                    'more than plain values, or names what mmengine would '
                    'import, and mmengine would run it. If you need a '
                    'config, pass it yourself'
                )
            )
        elif text != section['cfg']:
            section['cfg'] = text
            notes.add(
                _(
                    '`custom_imports` is left out of the config text in the '
                    'checkpoint: mmengine would import what it names. Import '
                    'these modules yourself before you load it'
                )
            )
    for note in notes:
        print_log(note, logger='current', level=logging.WARNING)


def plain_config(text: Any) -> str | None:
    """A config text as far as it is data; None if it is more than that.

    An assignment of ``custom_imports`` is left out, unless all modules in it
    are imported already: mmengine would import them.
    """
    if type(text) is not str or len(text) > _LONGEST:
        return None
    # mmengine replaces what is in double braces before it reads the text,
    # which can turn a string into code; so can a comment on the encoding.
    first_lines = text.split('\n', 2)[:2]
    if '{{' in text or any(x.lstrip().startswith('#') for x in first_lines):
        return None
    if _F_STRING.search(text):
        # Never dumped, and slow to parse.
        return None
    try:
        tree = ast.parse(text)
        kept = [one for one in tree.body if not _imports_modules(one)]
        if not all(map(_is_plain_assignment, tree.body)):
            return None
        if kept == tree.body:
            return text
        return plain_config(ast.unparse(ast.Module(kept, [])))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_plain_assignment(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    return (
        isinstance(target, ast.Name)
        # mmengine would run the files that it names.
        and target.id != '_base_'
        and not target.id.startswith('__')
        and _is_plain(statement.value, _DEEPEST)
        and _may_be(target.id, statement.value)
    )


def _imports_modules(statement: ast.stmt) -> bool:
    targets = getattr(statement, 'targets', ())
    if not any(getattr(one, 'id', '') == 'custom_imports' for one in targets):
        return False
    return any(
        isinstance(one, ast.Constant)
        and isinstance(one.value, str)
        and one.value not in sys.modules
        for one in ast.walk(statement)
    )


def _is_plain(node: ast.expr | None, depth: int) -> bool:
    if depth == 0:
        return False
    if isinstance(node, ast.Constant):
        return type(node.value) in _PLAIN and '{{' not in str(node.value)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and (
            isinstance(node.operand, ast.Constant)
            and type(node.operand.value) in (int, float)
        )
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return all(_is_plain(one, depth - 1) for one in node.elts)
    if isinstance(node, ast.Dict):
        return _are_plain_items(zip(node.keys, node.values), depth)
    if not isinstance(node, ast.Call) or len(node.args) > 1:
        return False
    return (
        isinstance(node.func, ast.Name)
        and node.func.id == 'dict'
        # As `dict({'a key': 1})`, where keys are no names.
        and all(isinstance(one, ast.Dict) for one in node.args)
        and all(_is_plain(one, depth - 1) for one in node.args)
        and all(one.arg is not None for one in node.keywords)
        and _are_plain_items(
            ((ast.Constant(one.arg), one.value) for one in node.keywords),
            depth,
        )
    )


def _are_plain_items(
    items: Iterable[tuple[ast.expr | None, ast.expr]], depth: int
) -> bool:
    return all(
        _is_plain(key, depth - 1)
        and _is_plain(value, depth - 1)
        and _may_be(getattr(key, 'value', None), value)
        for key, value in items
    )


def _may_be(key: Any, node: ast.expr) -> bool:
    """Whether a setting may have a value.

    A registry imports what it does not know by its path, whatever that is:
    ``dict(type='os.system', command=...)`` is a program, and a scope or a
    word without a dot may be the name of any module.
    """
    name = getattr(node, 'value', None)
    if not isinstance(name, str):
        return True
    if key in _SCOPE_KEYS:
        return name in _scopes()
    if key not in _TYPE_KEYS:
        return True
    scope, dot, leaf = name.rpartition('.')
    if dot:
        return leaf[:1].isupper() and scope in _scopes()
    return name in sys.modules or not _is_module(name)


@cache
def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _scopes() -> set[str]:
    registries = [
        one for one in vars(root).values() if isinstance(one, Registry)
    ]
    children = (name for one in registries for name in one.children)
    return {'mmengine', 'mmcv', *MODULE2PACKAGE, *children}
