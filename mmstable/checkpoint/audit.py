"""Is there a NaN or an Inf in what is to be saved, or was loaded?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmstable.events import Culprit
from mmstable.messages import _
from mmstable.messages.printable import short_repr
from mmstable.numerics.grad_health import (
    find_nonfinite,
    gradient_norms,
    stored_values,
)

_MEASURABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# The copy that averages a model has the model's names behind this.
AVERAGED = 'module.'
_LONGEST_KEY = 200
# What normalization layers learn without a gradient.
_STATISTICS = ('running_mean', 'running_var')

# Section, path in it, and the tensor.
_Entry = tuple[str, tuple[Any, ...], Tensor]
# Names of tensors, to how many NaN and how many Inf they hold.
Counts = Mapping[str, Sequence[int]]


def find_poison(
    checkpoint: Mapping[str, Any], known: Counts | None = None
) -> list[Culprit]:
    """Weights, buffers and optimizer state that are not finite.

    Every tensor is read once, under the first of its names, and none is
    copied. Some hold NaN or Inf for a reason, as masks do: the ones listed
    in ``known`` are fine as long as they have no more of it than listed;
    without a list, those that hold Inf and one other value only. So is one
    number for each parameter in the state of an optimizer, as the smallest
    loss so far, that is Inf at first.

    Args:
        checkpoint (Mapping): A checkpoint, from memory or from a file.
        known (Mapping[str, Sequence[int]], optional): Names in the model's
            state dict, to how many NaN and how many Inf belong there; see
            :class:`~mmstable.checkpoint.placeholders.Placeholders`.
            Defaults to None.

    Returns:
        list[Culprit]: Where it is, as a path into the checkpoint.
    """
    entries = list(_audited(checkpoint))
    if not entries:
        return []
    tensors = [tensor for *__, tensor in entries]
    norms = gradient_norms(tensors).tolist()
    found = []
    for index, kind in find_nonfinite(tensors, norms).items():
        section, path, tensor = entries[index]
        name = '.'.join(map(_key_text, path))
        if section == 'optimizer':
            is_fine = kind == 'Inf' and _is_bound(entries, index)
        else:
            is_fine = _belongs(name, tensor, known)
        if not is_fine:
            found.append(Culprit(f'{_key_text(section)}.{name}', kind))
    return found


def list_culprits(culprits: Sequence[Culprit], most: int = 3) -> str:
    """The first of some culprits, and how many more there are."""
    names = ', '.join(f'{c.name} ({c.kind})' for c in culprits[:most])
    more = len(culprits) - most
    if more <= 0:
        return names
    return _('{names} and {more} more', names=names, more=more)


def looks_like_mask(tensor: Tensor) -> bool:
    """Whether a tensor holds Inf and one other value only."""
    values = stored_values(_measurable(tensor))
    finite = values[~torch.isinf(values)]
    # A number that is there once is any number, unless it is 0.
    count = finite.numel()
    is_enough = count > 1 or (count == 1 and float(finite[0].abs()) == 0)
    return is_enough and bool((finite == finite[0]).all())


def has_plus_inf(tensor: Tensor) -> bool:
    """Whether any number is +Inf; of complex ones, whether any is Inf."""
    values = stored_values(_measurable(tensor))
    if values.is_complex():
        return bool(torch.isinf(values).any())
    return bool(torch.isposinf(values).any())


def is_statistic(name: str) -> bool:
    """Whether this is the running statistic of a normalization layer."""
    return name.rpartition('.')[2] in _STATISTICS


def count_nonfinite(tensor: Tensor) -> tuple[int, int]:
    """How many NaN and how many Inf a tensor holds."""
    values = stored_values(_measurable(tensor))
    return int(torch.isnan(values).sum()), int(torch.isinf(values).sum())


def plain_name(name: str) -> str:
    """What the model calls a tensor of its average."""
    return name[len(AVERAGED) :] if name.startswith(AVERAGED) else name


def _belongs(name: str, tensor: Tensor, known: Counts | None) -> bool:
    nans, infs = count_nonfinite(tensor)
    if known is None:
        return nans == 0 and not is_statistic(name) and looks_like_mask(tensor)
    most = known.get(plain_name(name), known.get(name, (0, 0)))
    return nans <= most[0] and infs <= most[1]


def _is_bound(entries: Sequence[_Entry], index: int) -> bool:
    """Whether an optimizer keeps a single number of this name everywhere."""
    leaf = _leaf(entries[index])
    return all(
        one[2].dim() == 0
        for one in entries
        if one[0] == 'optimizer' and _leaf(one) == leaf
    )


def _leaf(entry: _Entry) -> str:
    return str(entry[1][-1]).rpartition('.')[2]


def _measurable(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if tensor.layout not in (torch.strided, torch.sparse_coo):
        tensor = tensor.values()
    # Floats of eight bits have no norm.
    is_plain = tensor.dtype in _MEASURABLE or tensor.is_complex()
    return tensor if is_plain else tensor.float()


def _key_text(key: Any) -> str:
    # A file can have a long one in front of very many tensors.
    return key[:_LONGEST_KEY] if isinstance(key, str) else short_repr(key)


def _audited(
    checkpoint: Mapping[str, Any],
) -> Iterator[_Entry]:
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
        if content.is_floating_point() or content.is_complex():
            yield path, _measurable(content)
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from _tensors(value, (*path, key), seen)
    elif isinstance(content, (list, tuple)):
        for index, value in enumerate(content):
            yield from _tensors(value, (*path, index), seen)
