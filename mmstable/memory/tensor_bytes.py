"""How many bytes of tensors does a step take at its peak?

torch's MemTracker counts them, on tensors that hold no data where the model
allows it, and else on real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mmstable.memory.batches import tensors_in

try:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker
except ImportError:
    MemTracker = None  # type: ignore


class Peak(NamedTuple):
    """Bytes of tensors when there are most.

    Args:
        weights (int): Parameters and buffers.
        gradients (int): Gradients, once all are there.
        optimizer (int): State of the optimizer.
        batch (int): The batch itself.
        total (int): All tensors at the peak, activations included. At that
            moment not all gradients need to be there.
    """

    weights: int
    gradients: int
    optimizer: int
    batch: int
    total: int

    @property
    def activations(self) -> int:
        """Activations and whatever else comes and goes, at the peak."""
        lasting = self.weights + self.optimizer + self.batch
        return max(0, self.total - lasting)


def can_measure() -> bool:
    """Whether this torch has what it takes."""
    return MemTracker is not None


def make_fake(model: nn.Module) -> Any:
    """Take the data out of a model; its preprocessor stays as it is.

    Args:
        model (nn.Module): The model, which is of no other use any more.

    Returns:
        FakeTensorMode: What to run it in.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    preprocessor = getattr(model, 'data_preprocessor', None)
    kept = set(preprocessor.modules()) if preprocessor is not None else set()
    known: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in known:
            known[id(tensor)] = mode.from_tensor(tensor.detach())
            if isinstance(tensor, nn.Parameter):
                known[id(tensor)] = nn.Parameter(
                    known[id(tensor)], tensor.requires_grad
                )
        return known[id(tensor)]

    # All are kept until the end: an id is given again to something new.
    originals = []
    for module in set(model.modules()) - kept:
        for name, one in [
            *module.named_parameters(recurse=False),
            *module.named_buffers(recurse=False),
        ]:
            originals.append(one)
            setattr(module, name, fake(one))
    return mode


class StepMeter:
    """Measures steps of a model.

    Args:
        model (nn.Module): The model, fake or real.
        optimizer (Optimizer, optional): Its optimizer; None if only
            predictions are measured. Defaults to None.
        mode (FakeTensorMode, optional): What :func:`make_fake` gave; None
            for a real model. Defaults to None.
        dtype (torch.dtype, optional): What autocast casts to; None for none.
            Defaults to None.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Optimizer | None = None,
        mode: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._model, self._optimizer = model, optimizer
        self._mode, self._dtype = mode, dtype

    def training(self, batch: Any, accumulates: bool = False) -> Peak:
        """A training step.

        Args:
            batch (Any): What the data loader gives.
            accumulates (bool): Whether gradients of an earlier batch are
                there already. Defaults to False.
        """
        optimizer = self._optimizer
        if optimizer is None:
            raise ValueError('a training step needs an optimizer')
        model = self._model.train()
        data = model.data_preprocessor(batch, True)

        def step() -> None:
            with self._autocast():
                losses = _call(model, data, 'loss')
                loss, _ = model.parse_losses(losses)
            loss.backward()

        def update() -> None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        with self._in_mode():
            if not optimizer.state:
                step()
                update()
            if accumulates:
                step()
            return self._track(data, step, update)

    def prediction(self, batch: Any) -> Peak:
        """A forward pass as in validation.

        Args:
            batch (Any): What the data loader gives.
        """
        model = self._model.eval()
        data = model.data_preprocessor(batch, False)

        def step() -> None:
            with torch.no_grad(), self._autocast():
                _call(model, data, 'predict')

        with self._in_mode():
            return self._track(data, step)

    def _in_mode(self) -> AbstractContextManager:
        return nullcontext() if self._mode is None else self._mode

    def _autocast(self) -> AbstractContextManager:
        if self._dtype is None:
            return nullcontext()
        return torch.autocast('cpu', dtype=self._dtype)

    def _track(self, data: Any, *actions: Callable[[], None]) -> Peak:
        tracker = MemTracker()
        given = list(tensors_in(data))
        held = [one for one in (self._optimizer,) if one is not None]
        tracker.track_external(self._model, *held)
        tracker.track_external(*(p.grad for p in self._model.parameters()))
        if self._mode is None:
            # What stands for them in a fake mode is seen where it is used.
            tracker.track_external(*given)
        with tracker:
            for action in actions:
                action()
        snapshot = tracker.get_tracker_snapshot('peak').values()
        total = sum(
            size
            for sizes in snapshot
            for kind, size in sizes.items()
            if getattr(kind, 'value', kind) == 'Total'
        )
        parameters = list(self._model.parameters())
        states = [dict(one) for opt in held for one in opt.state.values()]
        return Peak(
            weights=_size([*parameters, *self._model.buffers()]),
            gradients=_size(p for p in parameters if p.requires_grad)
            if held
            else 0,
            optimizer=_size(tensors_in(states)),
            batch=_size(given),
            total=total,
        )


def _call(model: Any, data: Any, mode: str) -> Any:
    if isinstance(data, dict):
        return model(**data, mode=mode)
    return model(*data, mode=mode)


def _size(tensors: Any) -> int:
    return sum(one.numel() * one.element_size() for one in tensors)
