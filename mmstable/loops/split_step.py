"""Train on parts of a batch, each with a loss of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from mmstable import run_view
from mmstable.batches import batch_size, take_samples
from mmstable.memory.chunks import part_sizes


def train_in_parts(model: Module, batch: Any, wrapper: Any, parts: int) -> Any:
    """One update by the average of the losses of parts of a batch.

    That is the loss of the batch only if it is a mean over samples.

    Args:
        model (Module): The model, in its wrapper.
        batch (Any): What the data loader gave.
        wrapper (Any): The optimizer wrapper; one.
        parts (int): How many.
    """
    sizes = part_sizes(batch_size(batch), parts)
    stand_in, outputs, begin = _PartWrapper(wrapper), [], 0
    for size in sizes:
        stand_in.share = size / sum(sizes)
        begin += size
        stand_in.is_last = begin == sum(sizes)
        samples = list(range(begin - size, begin))
        outputs.append(
            model.train_step(  # type: ignore[operator]
                take_samples(batch, samples), optim_wrapper=stand_in
            )
        )
    return _average(outputs, [size / sum(sizes) for size in sizes])


class _PartWrapper:
    """Takes the place of a wrapper; only the last part makes a step."""

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper
        self._before: Tensor | float = 0.0
        self.share = 1.0
        self.is_last = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapper, name)

    @contextmanager
    def optim_context(self, model: Any) -> Iterator[None]:
        """The context of a forward pass; only the last one synchronises."""
        alone = nullcontext()
        if not self.is_last and hasattr(model, 'no_sync'):
            alone = model.no_sync()
        with self._wrapper.optim_context(model), alone:
            yield

    def update_params(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Add up gradients; make the step with the last part."""
        loss = loss * self.share
        if self.is_last:
            # For the sake of reports: a constant has no gradient.
            loss = loss + self._before
            self._wrapper.update_params(loss, *args, **kwargs)
            return
        self._before = self._before + loss.detach()
        loss = self._wrapper.scale_loss(loss)
        scaler = run_view.loss_scaler(self._wrapper)
        if scaler is not None:
            loss = scaler.scale(loss)
        loss.backward()


def _average(outputs: list[Any], shares: list[float]) -> Any:
    if not all(isinstance(one, Mapping) for one in outputs):
        return outputs[-1]
    merged = dict(outputs[-1])
    for name, value in merged.items():
        if isinstance(value, Tensor) and all(name in one for one in outputs):
            parts = [one[name] * s for one, s in zip(outputs, shares)]
            merged[name] = torch.stack(parts).sum(0)
    return merged
