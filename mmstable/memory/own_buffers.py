"""Forward passes that are repeated must count once in running statistics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm

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
    if not buffers:
        return
    total = sum(sizes)
    shares = [size / total for size in sizes]
    with torch.no_grad():
        spreads = {
            module: _between(module, results, shares)
            for module in {part for part, _ in buffers}
            if isinstance(module, _BatchNorm)
            and module.running_var is not None
        }
        for key, buffer in buffers.items():
            values = [result[key] for result in results]
            if not buffer.is_floating_point():
                buffer.copy_(values[-1])
                continue
            merged = _average(values, shares)
            if key[1] == 'running_var' and key[0] in spreads:
                merged = merged + spreads[key[0]]
            buffer.copy_(merged)


def _between(
    module: _BatchNorm, results: Sequence[Buffers], shares: Sequence[float]
) -> Tensor | float:
    """What the means of the parts add to the running variance."""
    key = module, 'running_mean'
    count = results[0].get((module, 'num_batches_tracked'))
    momentum = module.momentum
    if momentum is None:
        momentum = 1.0 if count is None else 1.0 / max(int(count), 1)
    if not momentum:
        return 0.0
    means = [result[key] for result in results]
    middle = _average(means, shares)
    spread = _average([(mean - middle) ** 2 for mean in means], shares)
    # Each mean has entered its result by this factor only.
    return spread / momentum


def _average(values: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    total = values[0] * shares[0]
    for value, share in zip(values[1:], shares[1:]):
        total = total + value * share
    return total
