"""Clipping that is missing, doubled, or fatal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mmstable.finding import Severity
from mmstable.preflight.config_view import ConfigView, uses_amp, uses_fp16
from mmstable.preflight.rule import Hit, rule


@rule('fp16_without_clipping', Severity.WARNING)
def fp16_without_clipping(view: ConfigView) -> Iterator[Hit]:
    """Transformers in fp16 whose gradients nothing limits."""
    if not view.transformers or _clip_hooks(view):
        return
    for wrapper in view.wrappers:
        if uses_fp16(wrapper) and not wrapper.settings.get('clip_grad'):
            path = f'{wrapper.path}.clip_grad'
            fields = {'kinds': view.transformers[:3]}
            yield Hit(path, fields, {path: {'max_norm': 1.0}})


@rule('error_if_nonfinite', Severity.ERROR)
def error_if_nonfinite(view: ConfigView) -> Iterator[Hit]:
    """Clipping that raises at an overflow, which AMP survives."""
    for wrapper in view.wrappers:
        clip = wrapper.settings.get('clip_grad')
        raises = isinstance(clip, Mapping) and clip.get('error_if_nonfinite')
        if uses_amp(wrapper) and raises:
            path = f'{wrapper.path}.clip_grad.error_if_nonfinite'
            yield Hit(path, {}, {path: False})


@rule('clipped_twice', Severity.ERROR)
def clipped_twice(view: ConfigView) -> Iterator[Hit]:
    """``GradClipHook`` besides ``clip_grad``: it refuses that."""
    if not _clip_hooks(view):
        return
    for wrapper in view.wrappers:
        if wrapper.settings.get('clip_grad'):
            path = f'{wrapper.path}.clip_grad'
            yield Hit(path, {'path': path}, {path: None})


def _clip_hooks(view: ConfigView) -> list[str]:
    return [one.path for one in view.hooks if one.kind == 'GradClipHook']
