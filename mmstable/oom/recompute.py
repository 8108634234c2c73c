"""Modules that recompute activations in the backward pass, or by chunks.

A forward pass that is repeated updates running statistics once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import (
    ExitStack,
    contextmanager,
    nullcontext,
)
from functools import partial
from typing import Any, Callable

import torch
from torch import Tensor
from torch.nn import Module, ModuleDict, ModuleList, Sequential
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from mmstable.messages import N_, _
from mmstable.settings import no_match

Buffers = dict[tuple[Module, str], Tensor]


def buffers_of(module: Module) -> Buffers:
    """All buffers of a module and of what is in it.

    Args:
        module (Module): The module.
    """
    return {
        (part, name): buffer
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    }


def copy_buffers(buffers: Buffers) -> Buffers:
    """Copies of buffers, those that are shared stay shared."""
    copies: dict[int, Tensor] = {}
    for buffer in buffers.values():
        if id(buffer) not in copies:
            copies[id(buffer)] = buffer.detach().clone()
    return {key: copies[id(buffer)] for key, buffer in buffers.items()}


@contextmanager
def in_place_of(buffers: Buffers, others: Buffers) -> Iterator[None]:
    """Let modules work on other buffers than their own.

    Args:
        buffers (dict): Their own.
        others (dict): What to use instead.
    """
    for (part, name), other in others.items():
        part._buffers[name] = other
    try:
        yield
    finally:
        for (part, name), buffer in buffers.items():
            part._buffers[name] = buffer


def merge(
    buffers: Buffers, results: Sequence[Buffers], sizes: Sequence[int]
) -> None:
    """Write to buffers what one pass over all parts of a batch would have.

    Every part has started with the values that the buffers have now. Running
    means become exactly those of the whole batch, variances that of the
    parts and between them. Counters take one step.

    Args:
        buffers (dict): What to write to.
        results (Sequence[dict]): What became of a copy with each part.
        sizes (Sequence[int]): How many samples each part had.
    """
    shares = [size / sum(sizes) for size in sizes]
    with torch.no_grad():
        # What the means of the parts add to the running variance.
        spreads = {
            part: _spread(part, results, shares)
            for part, name in buffers
            if isinstance(part, _BatchNorm) and name == 'running_var'
        }
        for key, buffer in buffers.items():
            values = [result[key] for result in results]
            if not buffer.is_floating_point():
                buffer.copy_(values[-1])
                continue
            buffer.copy_(_average(values, shares))
            if key[1] == 'running_var' and key[0] in spreads:
                buffer.add_(spreads[key[0]])


def _spread(
    module: _BatchNorm, results: Sequence[Buffers], shares: Sequence[float]
) -> Tensor | float:
    momentum = module.momentum
    if momentum is None:
        count = results[0].get((module, 'num_batches_tracked'))
        momentum = 1.0 if count is None else 1.0 / max(int(count), 1)
    if not momentum:
        return 0.0
    means = [result[module, 'running_mean'] for result in results]
    middle = _average(means, shares)
    # Each mean has entered its result by this factor only.
    return _average([(one - middle) ** 2 for one in means], shares) / momentum


def _average(values: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    total = values[0] * shares[0]
    for value, share in zip(values[1:], shares[1:]):
        total = total + value * share
    return total


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


Forward = Callable[..., Any]


@contextmanager
def recomputed(modules: Iterable[Module], chunks: int = 1) -> Iterator[None]:
    """Keep no activations of some modules while they train.

    Each of them runs again in the backward pass, with the same random
    numbers, under the same autocast. Running statistics are updated once.
    Gradients are those of a plain forward pass.

    Args:
        modules (Iterable[Module]): The modules; none inside another one.
        chunks (int): Parts of the batch that each module sees one after the
            other. Layers that use statistics of the batch, as BatchNorm,
            then use those of its part. Defaults to 1.
    """
    with ExitStack() as stack:
        for module in modules:
            forward = partial(_forward, module, module.forward, chunks)
            stack.enter_context(replaced_forward(module, forward))
        yield


@contextmanager
def replaced_forward(module: Module, forward: Forward) -> Iterator[None]:
    """Let a module run another function in place of its ``forward``.

    Args:
        module (Module): The module.
        forward (Callable): The function.
    """
    attributes = vars(module)
    # The user may have set one on the instance, too.
    own = attributes.get('forward')
    attributes['forward'] = forward
    try:
        yield
    finally:
        attributes.pop('forward', None)
        if own is not None:
            attributes['forward'] = own


def _forward(
    module: Module, forward: Forward, chunks: int, *args: Any, **kwargs: Any
) -> Any:
    if not (torch.is_grad_enabled() and module.training):
        return forward(*args, **kwargs)
    if chunks == 1:
        return _checkpoint(module, forward, args, kwargs)
    parts, sizes = cut_arguments(args, kwargs, chunks)
    buffers = buffers_of(module)
    outputs, results = [], []
    for part_args, part_kwargs in parts:
        # Each part sees the statistics from before the whole batch.
        copies = copy_buffers(buffers)
        with in_place_of(buffers, copies):
            outputs.append(
                _checkpoint(module, forward, part_args, part_kwargs)
            )
        results.append(copies)
    merge(buffers, results, sizes)
    return join_outputs(outputs, sizes)


def _checkpoint(
    module: Module, forward: Forward, args: tuple, kwargs: dict[str, Any]
) -> Any:
    start = copy_buffers(buffers_of(module))
    return checkpoint(
        forward,
        *args,
        use_reentrant=False,
        context_fn=lambda: (nullcontext(), _as_at_first(module, start)),
        **kwargs,
    )


@contextmanager
def _as_at_first(module: Module, start: Buffers) -> Iterator[None]:
    """Compute again as the first time, without a trace in the buffers."""
    with in_place_of(buffers_of(module), start):
        yield


_CONTAINERS = (Sequential, ModuleList, ModuleDict)
_BACKBONES = r'(.*[._])?backbone'


def choose_modules(
    model: Module, patterns: Sequence[str] | None, setting: str
) -> dict[str, Module]:
    """Modules by name or pattern, none inside another one.

    Args:
        model (Module): The model, without DDP and the like around it.
        patterns (Sequence[str], optional): Names, or regular expressions for
            whole names. None for those that are called a backbone, if any.
        setting (str): What to call them in an error.
    """
    modules = {name: one for name, one in model.named_modules() if name}
    chosen: dict[str, Module] = {}
    for pattern in [_BACKBONES] if patterns is None else patterns:
        found = {
            name: module
            for name, module in modules.items()
            if name == pattern or re.fullmatch(pattern, name)
        }
        if not found and patterns is not None:
            raise ValueError(no_match(setting, pattern, list(modules)))
        chosen.update(found)
    return {
        name: module
        for name, module in chosen.items()
        if not any(name.startswith(f'{other}.') for other in chosen)
    }


def blocks_of(module: Module) -> list[Module]:
    """The parts of a module that are worth computing again, one by one.

    These are its children that have parts themselves, looking through
    containers; or the module itself if there are none.

    Args:
        module (Module): The module.
    """
    return _blocks(module) or [module]


def batch_norms(modules: Sequence[Module]) -> list[str]:
    """Layers that use statistics of their batch now, by name.

    Args:
        modules (Sequence[Module]): Where to look.
    """
    return [
        name or type(layer).__name__
        for module in modules
        for name, layer in module.named_modules()
        if isinstance(layer, _BatchNorm) and layer.training
    ]


def _blocks(module: Module) -> list[Module]:
    found: list[Module] = []
    for child in module.children():
        if isinstance(child, _CONTAINERS):
            inner = _blocks(child)
            # A list of modules cannot be called itself.
            if not inner and isinstance(child, Sequential) and len(child) > 1:
                inner = [child]
            found += inner
        elif any(True for __ in child.children()):
            found.append(child)
    return found
