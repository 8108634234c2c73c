"""What is in a checkpoint, and in what do two of them differ?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmstable.checkpoint.audit import find_poison, list_culprits
from mmstable.checkpoint.loading import load_file, no_dict
from mmstable.checkpoint.manifest import Manifest
from mmstable.messages import N_, _
from mmstable.messages.printable import short_repr

_FACTS = {
    'iteration': N_('iteration'),
    'epoch': N_('epoch'),
    'time': N_('saved at'),
    'versions': N_('versions'),
    'seed': N_('seed'),
    'loss_scale': N_('loss scale'),
    'lr': N_('learning rate'),
    'finite': N_('finite'),
    'sections': N_('sections'),
    'weights': N_('weights'),
}


@dataclass(frozen=True)
class Description:
    """A checkpoint, described for a person.

    Args:
        facts (Mapping[str, str]): What it is, by name.
        weights (Mapping[str, Tensor]): What the model has in it.
    """

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
    weights = content.get('state_dict', content)
    tensors = {
        str(name): value
        for name, value in (weights if _is_dict(weights) else {}).items()
        if isinstance(value, Tensor)
    }
    return Description(_facts(Path(path), content, tensors), tensors)


def _facts(
    path: Path, content: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, str]:
    meta, optimizer = _section(content, 'meta'), _section(content, 'optimizer')
    manifest = Manifest.read(path)
    versions = dict(manifest.versions) if manifest else {}
    if not versions and 'mmengine_version' in meta:
        versions['mmengine'] = meta['mmengine_version']
    has_sections = 'state_dict' in content
    poison = find_poison(content if has_sections else {'state_dict': content})
    found = {
        'iteration': meta.get('iter'),
        'epoch': meta.get('epoch'),
        'time': meta.get('time'),
        'versions': ', '.join(f'{k} {v}' for k, v in versions.items()),
        'seed': meta.get('seed'),
        'loss_scale': _join(_scales(optimizer)),
        'lr': _join(_rates(optimizer)),
        'finite': _('NO: {culprits}', culprits=list_culprits(poison))
        if poison
        else _('yes'),
        'sections': ', '.join(map(str, content)) if has_sections else None,
        'weights': _(
            '{tensors:tensor|tensors}, {values} values',
            tensors=len(tensors),
            values=sum(tensor.numel() for tensor in tensors.values()),
        ),
    }
    return {
        _(_FACTS[name]): _text(value)
        for name, value in found.items()
        if value not in (None, '')
    }


def compare_weights(
    one: Mapping[str, Tensor], other: Mapping[str, Tensor]
) -> dict[str, str]:
    """In what the weights of two checkpoints differ, by name."""
    found: dict[str, str] = {}
    for name in [*one, *(name for name in other if name not in one)]:
        difference = _difference(one.get(name), other.get(name))
        if difference is not None:
            found[name] = difference
    return found


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


def _scales(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _section(one, 'loss_scaler').get('scale')
        for name, one in _wrappers(optimizer).items()
        if _section(one, 'loss_scaler')
    }


def _rates(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: ' ... '.join(_range(one['param_groups']))
        for name, one in _wrappers(optimizer).items()
    }


def _range(groups: Any) -> list[str]:
    rates = sorted(
        {
            float(group['lr'])
            for group in groups
            if _is_dict(group) and isinstance(group.get('lr'), (int, float))
        }
    )
    return [f'{rate:g}' for rate in rates[:1] + rates[1:][-1:]]


def _wrappers(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """The states of single optimizers, by the name of their wrapper."""
    if 'param_groups' in optimizer:
        return {'': optimizer}
    return {
        str(name): one
        for name, one in optimizer.items()
        if _is_dict(one) and 'param_groups' in one
    }


def _join(values: Mapping[str, Any]) -> str:
    return ', '.join(
        f'{name}: {value}' if name else str(value)
        for name, value in values.items()
    )


def _section(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = content.get(name)
    return section if isinstance(section, Mapping) else {}


def _is_dict(value: Any) -> bool:
    return isinstance(value, Mapping)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else short_repr(value)
