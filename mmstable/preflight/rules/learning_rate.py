"""A learning rate for another batch size."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from mmstable.finding import Severity
from mmstable.preflight.config_source import ConfigSource, bases_of
from mmstable.preflight.config_view import ConfigView, whole_number
from mmstable.preflight.rule import Hit, rule

# As OpenMMLab names configs: 8 GPUs, 32 samples each.
_NAMED = re.compile(r'(?<!\d)(\d+)xb(\d+)')
_FAR = 2.0
_RATE = 'optim_wrapper.optimizer.lr'


@rule('lr_for_other_batch', Severity.WARNING)
def lr_for_other_batch(view: ConfigView) -> Iterator[Hit]:
    """A rate for 8 GPUs on one: off by more than a factor of two.

    The rate is for ``auto_scale_lr.base_batch_size``, or for the batch size
    in the name of the config.
    """
    base = _base_batch_size(view)
    if base is None or view.batch_size is None or not view.wrappers:
        return
    if view.get('auto_scale_lr.enable'):
        return
    actual = view.batch_size * view.ranks * view.accumulation
    if 1 / _FAR <= actual / base <= _FAR:
        return
    fields = {
        'base': base,
        'actual': actual,
        'ranks': view.ranks,
        'size': view.batch_size,
        'counts': view.accumulation,
        'factor': actual / base,
    }
    change = {}
    if view.accumulation == 1:
        change['auto_scale_lr'] = {'enable': True, 'base_batch_size': base}
    yield Hit('auto_scale_lr', fields, change)


@rule('auto_scale_without_accumulation', Severity.WARNING)
def auto_scale_without_accumulation(view: ConfigView) -> Iterator[Hit]:
    """Scaled by ranks and batch size, not by accumulation."""
    counts = view.accumulation
    if view.get('auto_scale_lr.enable') and counts > 1:
        yield Hit('auto_scale_lr', {'counts': counts})


def _base_batch_size(view: ConfigView) -> int | None:
    base = whole_number(view.get('auto_scale_lr.base_batch_size'))
    return base or _named_batch_size(view.file)


def _named_batch_size(file: str) -> int | None:
    """What the name of a config says, or of the one that it is based on."""
    named = _NAMED.findall(os.path.basename(file))
    if named:
        return int(named[-1][0]) * int(named[-1][1])
    if ConfigSource(file).line_of(_RATE).startswith(f'{file}:'):
        # Its own rate is for a batch size of its own.
        return None
    found = map(_named_batch_size, bases_of(file))
    return next((size for size in found if size), None)
