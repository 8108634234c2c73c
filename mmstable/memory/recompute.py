"""Modules that compute their activations again instead of keeping them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Callable

import torch
from torch.nn import Module
from torch.utils.checkpoint import checkpoint

from mmstable.memory.chunks import cut_arguments, join_outputs
from mmstable.memory.own_buffers import (
    Buffers,
    buffers_of,
    copy_buffers,
    in_place_of,
    merge,
)

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
    installed = []
    try:
        for module in modules:
            installed.append((module, install(module, chunks)))
        yield
    finally:
        for _, remove in reversed(installed):
            remove()


def install(module: Module, chunks: int = 1) -> Callable[[], None]:
    """Let one module recompute; calling the result ends it.

    Args:
        module (Module): The module.
        chunks (int): As in :func:`recomputed`. Defaults to 1.
    """
    attributes = vars(module)
    # Somebody else may have put a function there, too.
    own = attributes.get('forward')
    forward = module.forward
    attributes['forward'] = partial(_forward, module, forward, chunks)

    def remove() -> None:
        if own is None:
            attributes.pop('forward', None)
        else:
            attributes['forward'] = own

    return remove


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

    def contexts() -> tuple[AbstractContextManager, AbstractContextManager]:
        return nullcontext(), _on_copies(module, start)

    return checkpoint(
        forward, *args, use_reentrant=False, context_fn=contexts, **kwargs
    )


@contextmanager
def _on_copies(module: Module, start: Buffers) -> Iterator[None]:
    """Compute again as the first time, without a trace in the buffers."""
    with in_place_of(buffers_of(module), copy_buffers(start)):
        yield
