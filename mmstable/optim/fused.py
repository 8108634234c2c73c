"""Optimizers that are fused wherever this torch can fuse them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from mmengine.logging import print_log
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from mmstable.messages import _
from mmstable.registry import OPTIMIZERS


@OPTIMIZERS.register_module()
def FusedAdamW(params: Iterable[Any], **kwargs: Any) -> Optimizer:  # noqa: N802
    """``torch.optim.AdamW``, fused where torch can do it.

    Args:
        params (Iterable): Parameters, or dicts that define groups of them.
        **kwargs: Arguments of :class:`torch.optim.AdamW`.
    """
    return _build(AdamW, params, kwargs)


@OPTIMIZERS.register_module()
def FusedSGD(params: Iterable[Any], **kwargs: Any) -> Optimizer:  # noqa: N802
    """``torch.optim.SGD``, fused where torch can do it.

    Args:
        params (Iterable): Parameters, or dicts that define groups of them.
        **kwargs: Arguments of :class:`torch.optim.SGD`.
    """
    return _build(SGD, params, kwargs)


def _build(
    cls: type[Any], params: Iterable[Any], kwargs: dict[str, Any]
) -> Optimizer:
    # Both a generator and its groups' generators can be read only once.
    groups = [_listed(entry) for entry in params]
    if 'fused' in kwargs or kwargs.get('foreach'):
        return cls(groups, **kwargs)
    reason = _why_not_fused(cls, _tensors(groups))
    if reason is None:
        try:
            return cls(groups, fused=True, **kwargs)
        except RuntimeError as error:
            reason = str(error)
    line = _(
        '{name} is not fused: {reason}.', name=cls.__name__, reason=reason
    )
    print_log(line, logger='current')
    return cls(groups, **kwargs)


def _listed(entry: Any) -> Any:
    if not isinstance(entry, dict) or isinstance(entry['params'], Tensor):
        return entry
    return {**entry, 'params': list(entry['params'])}


def _tensors(groups: list[Any]) -> list[Tensor]:
    """The parameters of ``groups``, named pairs and groups taken apart."""
    found: list[Tensor] = []
    for entry in groups:
        if isinstance(entry, Tensor):
            found.append(entry)
        elif isinstance(entry, dict):
            inner = entry['params']
            found += _tensors([inner] if isinstance(inner, Tensor) else inner)
        elif isinstance(entry, tuple):
            found.append(entry[1])
    return found


def _why_not_fused(cls: type[Any], tensors: list[Tensor]) -> str | None:
    """What stands against fusing; None if nothing does."""
    version = torch.__version__
    if 'fused' not in inspect.signature(cls).parameters:
        return _('torch {version} has no fused version of it', version=version)
    for tensor in tensors:
        if not tensor.is_floating_point():
            return _('it has a parameter of {dtype}', dtype=tensor.dtype)
        if tensor.device.type not in _fused_devices():
            return _(
                "torch {version} cannot fuse on device '{device}'",
                version=version,
                device=tensor.device.type,
            )
    return None


def _fused_devices() -> list[str]:
    from torch.utils import _foreach_utils

    # Named differently over the years, and without the CPU before 2.4.
    for name in (
        '_get_fused_kernels_supported_devices',
        '_get_foreach_kernels_supported_devices',
    ):
        if hasattr(_foreach_utils, name):
            return list(getattr(_foreach_utils, name)())
    return ['cuda']
