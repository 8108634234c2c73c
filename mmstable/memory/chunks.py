"""Cut the arguments of a module along the batch, and join its outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from mmstable.messages import N_, _

Arguments = tuple[tuple, dict[str, Any]]
_UNLIKE_OUTPUTS = N_(
    'the outputs of the module for parts of a batch do not fit together'
)


class CannotChunk(Exception):
    """A module whose inputs or outputs are not one entry for each sample."""


def cut_arguments(
    args: tuple, kwargs: dict[str, Any], chunks: int
) -> tuple[list[Arguments], list[int]]:
    """The arguments of a call for each part of its batch.

    Args:
        args (tuple): Positional arguments, nested in any way.
        kwargs (dict): Named ones.
        chunks (int): Most parts; there are no more than samples.

    Returns:
        tuple: The arguments of each part, and its number of samples.
    """
    leaves, spec = tree_flatten((args, kwargs))
    lengths = {
        len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()
    }
    if len(lengths) != 1:
        raise CannotChunk(
            _(
                'the tensors that the module gets have different lengths '
                '({sizes})',
                sizes=sorted(lengths),
            )
            if lengths
            else _('the module gets no tensors')
        )
    sizes = part_sizes(lengths.pop(), chunks)
    parts = []
    cut = [
        leaf.split(sizes) if isinstance(leaf, Tensor) and leaf.dim() else None
        for leaf in leaves
    ]
    for index in range(len(sizes)):
        values = [
            leaf if pieces is None else pieces[index]
            for leaf, pieces in zip(leaves, cut)
        ]
        parts.append(tree_unflatten(values, spec))
    return parts, sizes


def part_sizes(length: int, chunks: int) -> list[int]:
    """Sizes of parts that are as equal as can be.

    Args:
        length (int): What to cut.
        chunks (int): Most parts.
    """
    chunks = max(1, min(chunks, length))
    each, more = divmod(length, chunks)
    return [each + (index < more) for index in range(chunks)]


def join_outputs(outputs: Sequence[Any], sizes: Sequence[int]) -> Any:
    """What a module would have given for the whole batch.

    Args:
        outputs (Sequence): What it gave for each part.
        sizes (Sequence[int]): How many samples each part had.
    """
    flat = [tree_flatten(output) for output in outputs]
    spec = flat[0][1]
    if any(other != spec for __, other in flat):
        raise CannotChunk(_(_UNLIKE_OUTPUTS))
    joined = [_join(leaves, sizes) for leaves in zip(*(f for f, __ in flat))]
    return tree_unflatten(joined, spec)


def _join(leaves: tuple, sizes: Sequence[int]) -> Any:
    first = leaves[0]
    if isinstance(first, Tensor):
        shapes = [tuple(leaf.shape) for leaf in leaves]
        if any(
            not shape or shape[0] != size for shape, size in zip(shapes, sizes)
        ):
            raise CannotChunk(
                _(
                    'an output of the module has not one entry for each '
                    'sample (shape {shape})',
                    shape=shapes[0],
                )
            )
        return torch.cat(leaves)
    if any(leaf != first for leaf in leaves):
        raise CannotChunk(_(_UNLIKE_OUTPUTS))
    return first
