"""Steps of optimizers that compute loss and gradients by themselves."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

import torch
from torch import Tensor
from torch.optim import Optimizer

from mmstable.distributed import collectives as dist
from mmstable.numerics import grad_health
from mmstable.optim.step_attempt import live_gradients


@dataclass
class ClosureOutcome:
    """What became of a step with a closure.

    Args:
        grad_norm (float, optional): The norm of the first gradients, those
            at the weights before the step. Defaults to None.
        culprits (list): Parameters whose first gradient is not finite, each
            with 'NaN' or 'Inf'. Defaults to [].
        losses_are_finite (bool): Whether all losses were. Defaults to True.
        is_bad (bool): Whether everything was restored. Defaults to False.
    """

    grad_norm: float | None = None
    culprits: list[tuple[Tensor, str]] = field(default_factory=list)
    losses_are_finite: bool = True
    is_bad: bool = False


class BadStart(Exception):
    """There are no good gradients at the present weights."""


def step_with_closure(
    optimizer: Optimizer, closure: Callable[[], Any], **kwargs: Any
) -> ClosureOutcome:
    """Let an optimizer step, and undo that if something is not finite.

    The gradients at the present weights must be finite; nothing is tried
    otherwise. What a line search meets elsewhere is the optimizer's own
    business, as long as weights and state are finite in the end. Takes memory
    for one more copy of both, and waits for the device. A collective call.

    Args:
        optimizer (Optimizer): The optimizer, as ``torch.optim.LBFGS``.
        closure (Callable): Computes the loss and its gradients; may raise
            :class:`BadStart`.
        **kwargs: More arguments of ``optimizer.step``.
    """
    outcome = ClosureOutcome()
    before = _State(optimizer)

    def watched() -> Any:
        loss = closure()
        if isinstance(loss, (float, Tensor)):
            loss_is_finite = _are_finite([torch.as_tensor(loss)])
            outcome.losses_are_finite &= loss_is_finite
        if outcome.grad_norm is None:
            _look_at_start(optimizer, outcome)
        return loss

    try:
        optimizer.step(closure=watched, **kwargs)
        outcome.is_bad = dist.any_rank(not before.is_still_finite())
    except BadStart:
        outcome.is_bad = True
    if outcome.is_bad:
        before.restore()
    return outcome


def _look_at_start(optimizer: Optimizer, outcome: ClosureOutcome) -> None:
    params, grads, _ = live_gradients(optimizer)
    norms = grad_health.gradient_norms(grads).tolist()
    outcome.grad_norm = grad_health.combined_norm(norms) if norms else 0.0
    found = grad_health.find_nonfinite(grads, norms)
    outcome.culprits = [(params[i], kind) for i, kind in found.items()]
    if dist.any_rank(bool(found)):
        raise BadStart


class _State:
    """A copy of the weights and the state of an optimizer."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._weights = [p.detach().clone() for p in self._params()]
        self._state = {
            param: copy.deepcopy(state)
            for param, state in optimizer.state.items()
        }

    def is_still_finite(self) -> bool:
        """Whether weights and state are, after a step."""
        state = list(_tensors(list(self._optimizer.state.values())))
        return _are_finite([*self._params(), *state])

    def restore(self) -> None:
        """Undo the step."""
        with torch.no_grad():
            for param, weight in zip(self._params(), self._weights):
                param.copy_(weight)
                param.grad = None
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)

    def _params(self) -> list[Tensor]:
        groups = self._optimizer.param_groups
        return [param for group in groups for param in group['params']]


def _are_finite(tensors: list[Tensor]) -> bool:
    values = [
        one.detach()
        for one in tensors
        if one.numel() and (one.is_floating_point() or one.is_complex())
    ]
    norms = grad_health.gradient_norms(values).tolist()
    return not grad_health.find_nonfinite(values, norms)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, (list, tuple)):
        # As the directions that LBFGS remembers.
        for one in value:
            yield from _tensors(one)
