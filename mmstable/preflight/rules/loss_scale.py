"""Loss scales, and the precision that they are for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from mmstable.finding import Severity
from mmstable.preflight.config_tree import walk
from mmstable.preflight.config_view import (
    ConfigView,
    Part,
    uses_amp,
    uses_fp16,
)
from mmstable.preflight.rule import Hit, rule
from mmstable.settings import is_number

_SAFE = 'mmstable.SafeAmpOptimWrapper'
_LARGEST_FP16 = 65504.0


@rule('int_scale', Severity.ERROR)
def int_scale(view: ConfigView) -> Iterator[Hit]:
    """The wrapper of mmengine raises a TypeError for an int."""
    for wrapper in view.wrappers:
        scale = wrapper.settings.get('loss_scale')
        if wrapper.kind == 'AmpOptimWrapper' and type(scale) is int:
            yield _with_safe_wrapper(wrapper, scale)


@rule('frozen_scale', Severity.WARNING)
def frozen_scale(view: ConfigView) -> Iterator[Hit]:
    """A scale that no overflow can lower."""
    for wrapper in view.wrappers:
        scale = wrapper.settings.get('loss_scale')
        if not uses_fp16(wrapper):
            continue
        if wrapper.kind == 'AmpOptimWrapper' and isinstance(scale, float):
            yield _with_safe_wrapper(wrapper, scale)
        elif isinstance(scale, Mapping) and scale.get('frozen') is True:
            path = f'{wrapper.path}.loss_scale'
            fields = {'scale': scale.get('init_scale', 'dynamic')}
            yield Hit(path, fields, {f'{path}.frozen': False})


@rule('high_scale', Severity.WARNING)
def high_scale(view: ConfigView) -> Iterator[Hit]:
    """A start value that overflows for a loss of 1, by its weights."""
    weight = max([1.0, *_loss_weights(view.get('model'))])
    for wrapper in view.wrappers:
        scale = wrapper.settings.get('loss_scale')
        start: Any = scale
        if isinstance(scale, Mapping):
            start = scale.get('init_scale')
        # 'dynamic' starts high on purpose, and falls within a few steps.
        if not uses_fp16(wrapper) or not is_number(start):
            continue
        if start * weight > _LARGEST_FP16:
            path = f'{wrapper.path}.loss_scale'
            half = _LARGEST_FP16 / weight / 2
            lower = 2.0 ** math.floor(math.log2(max(half, 1.0)))
            inner = path if start is scale else f'{path}.init_scale'
            fields = {'scale': start, 'weight': weight}
            yield Hit(path, fields, {inner: lower})


@rule('bf16_unsupported', Severity.ERROR)
def bf16_unsupported(view: ConfigView) -> Iterator[Hit]:
    """bfloat16 on GPUs that only emulate it, or cannot do it at all."""
    for wrapper in view.wrappers:
        dtype = str(wrapper.settings.get('dtype'))
        wanted = uses_amp(wrapper) and 'bfloat16' in dtype
        if wanted and view.machine.bf16() is False:
            path = f'{wrapper.path}.dtype'
            yield Hit(path, {}, {path: 'float16'})


def _with_safe_wrapper(wrapper: Part, scale: Any) -> Hit:
    return Hit(
        f'{wrapper.path}.loss_scale',
        {'scale': scale},
        {f'{wrapper.path}.type': _SAFE},
    )


def _loss_weights(model: Any) -> Iterator[float]:
    for _, node in walk(model):
        weight = node.get('loss_weight')
        if is_number(weight):
            yield float(weight)  # type: ignore[arg-type]
