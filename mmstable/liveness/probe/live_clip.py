"""The clip limit of a wrapper, read and changed while it trains."""

from __future__ import annotations

from typing import Any

from torch.nn.utils import clip_grad_norm_

from mmstable.numerics.clip_settings import parse_clip
from mmstable.numerics.clipping import FixedLimit, NormClip


def read_clip(wrapper: Any, source: Any = None) -> float | str | None:
    """The largest norm of gradients; other kinds of clipping in words.

    Args:
        wrapper (OptimWrapper): The wrapper.
        source (StepSource, optional): What observes it, if it is one of
            mmengine's. Defaults to None.
    """
    clip = getattr(_holder(wrapper, source), 'clip', None)
    if isinstance(clip, NormClip) and len(clip.groups) == 1:
        limit = clip.groups[0].limit
        if isinstance(limit, FixedLimit) and not clip.groups[0].modules:
            return limit.max_norm
    if clip is not None:
        return str(clip)
    settings = wrapper.clip_grad_kwargs
    if not settings:
        return None
    return settings.get('max_norm', str(settings))


def set_clip(wrapper: Any, limit: float, source: Any = None) -> None:
    """Clip all gradients of a wrapper by their norm from now on.

    Args:
        wrapper (OptimWrapper): The wrapper.
        limit (float): The largest norm.
        source (StepSource, optional): What observes it, if it is one of
            mmengine's. Defaults to None.
    """
    holder = _holder(wrapper, source)
    if holder is not None:
        holder.clip = parse_clip('LiveProbeHook', max_norm=limit)
        return
    settings = dict(wrapper.clip_grad_kwargs or {})
    if 'max_norm' not in settings:
        settings = {}
        wrapper.clip_func = clip_grad_norm_
        wrapper.grad_name = 'grad_norm'
    wrapper.clip_grad_kwargs = {**settings, 'max_norm': limit}


def _holder(wrapper: Any, source: Any) -> Any:
    """What has the clip: a safe wrapper, or the observer of another."""
    if hasattr(wrapper, 'clip'):
        return wrapper
    if getattr(source, 'clip', None) is not None:
        return source
    return None
