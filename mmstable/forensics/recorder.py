"""Stands in for optimizer wrappers in a replay, and never steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from mmengine.optim import OptimWrapper
from torch import Tensor
from torch.nn import Module

from mmstable.forensics.ranges import FINITE, severity
from mmstable.forensics.step_setup import StepSetup

# A checkpoint of this kind refuses `torch.autograd.grad`.
_REENTRANT = 'CheckpointFunctionBackward'


@dataclass
class Backprop:
    """A loss that a model gave to an optimizer wrapper.

    Args:
        wrapper (str): The name of the wrapper.
        loss (Tensor): The loss.
        gradients (dict): Of the wrapper's parameters, by name, scaled; empty
            if the loss is bad, or nobody asked for them. Defaults to {}.
        terms (dict): What the loss is the sum of, by name, if the model used
            ``parse_losses``. Defaults to {}.
    """

    wrapper: str
    loss: Tensor
    gradients: dict[str, Tensor] = field(default_factory=dict)
    terms: dict[str, Tensor] = field(default_factory=dict)

    @property
    def bad_gradients(self) -> dict[str, Tensor]:
        """Those that are not finite."""
        return {
            name: one
            for name, one in self.gradients.items()
            if severity(one) != FINITE
        }

    @property
    def bad_terms(self) -> tuple[str, ...]:
        """Names of the terms that are not finite."""
        return tuple(
            name for name, one in self.terms.items() if severity(one) != FINITE
        )

    @property
    def is_bad(self) -> bool:
        """Whether the loss or a gradient is not finite."""
        return severity(self.loss) != FINITE or bool(self.bad_gradients)


class RecordingWrapper(OptimWrapper):
    """Answers like an optimizer wrapper, and records what it is given.

    Args:
        name (str): The name of the wrapper that it stands for.
        setup (StepSetup): How that one computes and scales losses.
        model (Module): The model.
        record (list[Backprop]): Takes the losses.
        dtype (str, optional): What to autocast to instead. Defaults to None.
        with_gradients (bool): Whether to compute gradients. Defaults to True.
        by_term (bool): Whether to keep the graph, so that gradients of single
            terms can be computed. Defaults to False.
    """

    def __init__(
        self,
        name: str,
        setup: StepSetup,
        model: Module,
        record: list[Backprop],
        dtype: str | None = None,
        with_gradients: bool = True,
        by_term: bool = False,
    ) -> None:
        known = dict(model.named_parameters())
        self._params = {
            one: known[one] for one in setup.parameters if one in known
        }
        # Models may look at it. Without gradients it does nothing.
        optimizer = torch.optim.SGD(
            list(self._params.values()) or [torch.zeros(1)], lr=0.0
        )
        super().__init__(optimizer, setup.loss_factor)
        self._name = name
        self._setup = setup
        self._record = record
        self._dtype = dtype
        self._with_gradients = with_gradients
        self._by_term = by_term
        self._given: Tensor | None = None

    @contextmanager
    def optim_context(self, model: Module) -> Iterator[None]:
        """Autocast, as in the step that is replayed."""
        parameter = next(model.parameters(), None)
        kind = 'cpu' if parameter is None else parameter.device.type
        with self._setup.autocast(kind, self._dtype):
            yield

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Divide a loss by the iterations that make a step."""
        self._given = loss
        return super().scale_loss(loss)

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Record a loss and its gradients."""
        self._inner_count += 1
        given = loss if self._given is None else self._given
        self._given = None
        record = Backprop(self._name, given)
        self._record.append(record)
        if not self._with_gradients or not loss.requires_grad:
            return
        if severity(loss) == FINITE:
            keep = bool(kwargs.get('retain_graph')) or self._by_term
            record.gradients = self.gradients_of(loss, keep)

    def gradients_of(self, loss: Tensor, keep: bool) -> dict[str, Tensor]:
        """The gradients of a loss, without any that accumulate them."""
        params = {n: p for n, p in self._params.items() if p.requires_grad}
        scaled = loss * self._setup.loss_scale
        if not params:
            return {}
        if _has_node(scaled, _REENTRANT):
            return _by_backward(scaled, params, keep)
        found = torch.autograd.grad(
            scaled, list(params.values()), retain_graph=keep, allow_unused=True
        )
        return {n: g for n, g in zip(params, found) if g is not None}

    def step(self, **kwargs: Any) -> None:
        """Do nothing."""

    def zero_grad(self, **kwargs: Any) -> None:
        """Do nothing."""


def _by_backward(
    loss: Tensor, params: Mapping[str, Tensor], keep: bool
) -> dict[str, Tensor]:
    for one in params.values():
        one.grad = None
    loss.backward(retain_graph=keep)
    found = {n: p.grad for n, p in params.items() if p.grad is not None}
    for one in params.values():
        one.grad = None
    return found


def _has_node(loss: Tensor, name: str) -> bool:
    """Whether a node of this name is in the graph of a loss."""
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node.name() == name:
            return True
        seen.add(node)
        waiting.extend(one for one, _ in node.next_functions)
    return False
