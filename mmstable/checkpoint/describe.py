"""Describe a checkpoint for a person, or how two of them differ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmstable.checkpoint.audit import find_poison, list_culprits
from mmstable.checkpoint.loading import load_file, no_dict
from mmstable.checkpoint.manifest import Manifest
from mmstable.messages import _, short_repr


class Description(NamedTuple):
    """What a checkpoint is, by name, and what the model has in it."""

    facts: Mapping[str, str]
    weights: Mapping[str, Tensor]


def describe_checkpoint(path: str | Path) -> Description:
    """Read a checkpoint, or a file of weights only.

    Raises:
        BadCheckpoint: If it is neither.
    """
    content = load_file(path)
    if not isinstance(content, Mapping):
        raise no_dict(path, content)
    is_whole = 'state_dict' in content
    checkpoint = content if is_whole else {'state_dict': content}
    tensors = {
        str(name): value
        for name, value in _as_dict(checkpoint['state_dict']).items()
        if isinstance(value, Tensor)
    }
    meta = _as_dict(content.get('meta'))
    manifest = Manifest.read(Path(path))
    versions = manifest.versions if manifest else {}
    if not versions and 'mmengine_version' in meta:
        versions = {'mmengine': meta['mmengine_version']}
    poison = find_poison(checkpoint)
    scales, rates = _scales_and_rates(_as_dict(content.get('optimizer')))
    found = {
        _('iteration'): meta.get('iter'),
        _('epoch'): meta.get('epoch'),
        _('saved at'): meta.get('time'),
        _('versions'): ', '.join(f'{k} {v}' for k, v in versions.items()),
        _('seed'): meta.get('seed'),
        _('loss scale'): scales,
        _('learning rate'): rates,
        _('finite'): _('NO: {culprits}', culprits=list_culprits(poison))
        if poison
        else _('yes'),
        _('sections'): ', '.join(map(str, content)) if is_whole else None,
        _('weights'): _(
            '{tensors:tensor|tensors}, {values} values',
            tensors=len(tensors),
            values=sum(tensor.numel() for tensor in tensors.values()),
        ),
    }
    facts = {
        name: value if isinstance(value, str) else short_repr(value)
        for name, value in found.items()
        if value not in (None, '')
    }
    return Description(facts, tensors)


def _scales_and_rates(optimizer: Mapping[str, Any]) -> tuple[str, str]:
    """The loss scale, lowest and highest learning rate of each wrapper."""
    is_single = 'param_groups' in optimizer
    scales, rates = [], []
    for name, one in ({'': optimizer} if is_single else optimizer).items():
        wrapper, begin = _as_dict(one), f'{name}: ' if name else ''
        scaler = _as_dict(wrapper.get('loss_scaler'))
        if scaler:
            scales.append(f'{begin}{scaler.get("scale")}')
        known = sorted(
            {
                float(group['lr'])
                for group in map(_as_dict, wrapper.get('param_groups', ()))
                if isinstance(group.get('lr'), (int, float))
            }
        )
        if known:
            ends = dict.fromkeys((known[0], known[-1]))
            rates.append(begin + ' ... '.join(f'{one:g}' for one in ends))
    return ', '.join(scales), ', '.join(rates)


def _as_dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def compare_states(
    one: Mapping[str, Tensor], other: Mapping[str, Tensor]
) -> dict[str, str]:
    """Describe how the weights of two checkpoints differ, by name."""
    found = {
        name: _difference(one.get(name), other.get(name))
        for name in {**one, **other}
    }
    return {name: text for name, text in found.items() if text is not None}


def _difference(one: Tensor | None, other: Tensor | None) -> str | None:
    if one is None or other is None:
        return _(
            'only in the first' if other is None else 'only in the second'
        )
    if one.shape != other.shape or one.dtype != other.dtype:
        return f'{kind_of(one)} -> {kind_of(other)}'
    if torch.equal(one, other):
        return None
    left, right = one.detach(), other.detach()
    if not left.is_complex():
        left, right = left.double(), right.double()
    gap = (left - right).abs()
    # Those that are NaN in both are no difference.
    gap = gap[~(torch.isnan(left) & torch.isnan(right))]
    if gap.numel() == 0 or bool((gap == 0).all()):
        return None
    return _('differs by up to {gap:.3g}', gap=float(gap.max()))


def kind_of(tensor: Tensor) -> str:
    """Its shape and type, in short."""
    shape = ' x '.join(map(str, tensor.shape)) or '1'
    return f'{shape} {str(tensor.dtype).rpartition(".")[2]}'
