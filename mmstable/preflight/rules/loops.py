"""Loops without what they need, and validation that hardly happens."""

from __future__ import annotations

from collections.abc import Iterator

from mmstable.finding import Severity
from mmstable.preflight.config_view import ConfigView, whole_number
from mmstable.preflight.rule import Hit, rule

_NEEDS = (
    ('train', 'optim_wrapper'),
    ('val', 'val_evaluator'),
    ('test', 'test_evaluator'),
)


@rule('incomplete_loop', Severity.ERROR, refuses=True)
def incomplete_loop(view: ConfigView) -> Iterator[Hit]:
    """Some of the three keys that a loop needs, but not all."""
    for kind, last in _NEEDS:
        names = [f'{kind}_cfg', f'{kind}_dataloader', last]
        missing = [name for name in names if view.get(name) is None]
        if missing and len(missing) < len(names):
            given = [name for name in names if name not in missing]
            yield Hit(given[0], {'given': given, 'missing': missing})


@rule('late_validation', Severity.WARNING)
def late_validation(view: ConfigView) -> Iterator[Hit]:
    """Validation starts, or comes round, only after the run is over."""
    length = view.length
    if length is None or not view.validates:
        return
    begin = whole_number(view.get('train_cfg.val_begin'))
    if begin is not None and begin > length:
        fields = {'name': 'val_begin', 'value': begin, 'length': length}
        yield Hit(
            'train_cfg.val_begin', fields, {'train_cfg.val_begin': length}
        )
    # Intervals that change on the way are somebody's plan.
    elif view.val_interval > length and not view.get(
        'train_cfg.dynamic_intervals'
    ):
        fields = {
            'name': 'val_interval',
            'value': view.val_interval,
            'length': length,
        }
        change = {'train_cfg.val_interval': max(1, length // 10)}
        yield Hit('train_cfg.val_interval', fields, change)
