"""Is there a NaN or an Inf in what is to be saved, or was loaded?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from mmstable.events import Culprit
from mmstable.messages import say
from mmstable.messages.printable import short_repr
from mmstable.numerics.grad_health import find_nonfinite, gradient_norms

_MEASURABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# The copy that averages a model has the model's names behind this.
_WRAPPED = 'module.'
_LONGEST_KEY = 200


def find_poison(
    checkpoint: Mapping[str, Any], infinite: Mapping[str, int] | None = None
) -> list[Culprit]:
    """Weights, buffers and optimizer state that are not finite.

    Every tensor is read once, under the first of its names, and none is
    copied. Masks hold Inf for a
    reason: the ones listed in ``infinite`` are fine as long as they have no
    more of it than listed; without a list, those that hold Inf and one other
    value only. NaN is always poison.

    Args:
        checkpoint (Mapping): A checkpoint, from memory or from a file.
        infinite (Mapping[str, int], optional): Names in the model's state
            dict, to the number of Inf that belong there; see
            :func:`count_infinite`. Defaults to None.

    Returns:
        list[Culprit]: Where it is, as a path into the checkpoint.
    """
    entries = list(_audited(checkpoint))
    if not entries:
        return []
    tensors = [tensor for *_, tensor in entries]
    norms = gradient_norms(tensors).tolist()
    found = []
    for index, kind in find_nonfinite(tensors, norms).items():
        section, path, tensor = entries[index]
        name = '.'.join(map(_key_text, path))
        legitimate = (
            kind == 'Inf'
            and section != 'optimizer'
            and _belongs(name, tensor, infinite)
        )
        if not legitimate:
            found.append(Culprit(f'{_key_text(section)}.{name}', kind))
    return found


def list_culprits(culprits: Sequence[Culprit], most: int = 3) -> str:
    """The first of some culprits, and how many more there are."""
    names = ', '.join(f'{c.name} ({c.kind})' for c in culprits[:most])
    more = len(culprits) - most
    if more <= 0:
        return names
    return say('checkpoint.culprits', names=names, more=more)


def looks_like_mask(tensor: Tensor) -> bool:
    """Whether a tensor holds Inf and one other value only."""
    finite = tensor[~torch.isinf(tensor)]
    return finite.numel() > 0 and bool((finite == finite[0]).all())


def count_infinite(model: Module) -> dict[str, int]:
    """How many Inf each buffer of a model holds, where there are any.

    Args:
        model (Module): A model that has not been trained yet, so that what
            it holds was put there on purpose.
    """
    counts = {}
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point():
            count = int(torch.isinf(buffer).sum())
            if count:
                counts[name] = count
    return counts


def _belongs(
    name: str, tensor: Tensor, infinite: Mapping[str, int] | None
) -> bool:
    if infinite is None:
        return looks_like_mask(tensor)
    if name.startswith(_WRAPPED):
        name = name[len(_WRAPPED) :]
    return int(torch.isinf(tensor).sum()) <= infinite.get(name, 0)


def _key_text(key: Any) -> str:
    # A file can have a long one in front of very many tensors.
    return key[:_LONGEST_KEY] if isinstance(key, str) else short_repr(key)


def _audited(
    checkpoint: Mapping[str, Any],
) -> Iterator[tuple[str, tuple[Any, ...], Tensor]]:
    seen: set[int] = set()
    for section, content in checkpoint.items():
        if section == 'optimizer' or str(section).endswith('state_dict'):
            for path, tensor in _tensors(content, (), seen):
                yield section, path, tensor


def _tensors(
    content: Any, path: tuple[Any, ...], seen: set[int]
) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    if isinstance(content, Tensor):
        if id(content) in seen:
            return
        seen.add(id(content))
        if content.layout not in (torch.strided, torch.sparse_coo):
            content = content.values()
        # Floats of eight bits have no norm.
        if content.dtype in _MEASURABLE or content.is_complex():
            yield path, content.detach()
        elif content.is_floating_point():
            yield path, content.detach().float()
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from _tensors(value, (*path, key), seen)
    elif isinstance(content, (list, tuple)):
        for index, value in enumerate(content):
            yield from _tensors(value, (*path, index), seen)
