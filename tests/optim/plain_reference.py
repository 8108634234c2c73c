"""What a training should end as: plain torch that leaves out what is bad.

Running statistics do not influence training, so they are not undone here,
but computed at the end from the inputs of those passes that count.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.optim.protocols import Parts, Protocol, Update, make_optimizer
from tests.toys import INF


class Trail:
    """The passes through a norm layer that count, for statistics and counter.

    The counter is apart, because it is never spoiled.
    """

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []
        self.count = 0

    def copy(self) -> Trail:
        trail = Trail()
        trail.inputs, trail.count = list(self.inputs), self.count
        return trail

    def is_finite(self) -> bool:
        return all(bool(one.isfinite().all()) for one in self.inputs)


class Mark:
    """Where all trails were before some passes."""

    def __init__(self) -> None:
        self.trails: dict[str, Trail] | None = None

    def set(self, trails: dict[str, Trail]) -> None:
        self.trails = {name: trail.copy() for name, trail in trails.items()}

    def go_back(self, trails: dict[str, Trail]) -> None:
        """Leave out all passes since then, as far as that can be told."""
        before, self.trails = self.trails, None
        if before is None:
            return
        for name, trail in trails.items():
            if not trail.is_finite() or before[name].is_finite():
                trail.inputs = before[name].inputs
            trail.count = before[name].count


class Optimizing:
    """One optimizer, its window, and the passes that belong to that."""

    def __init__(self, model: Parts, name: str, protocol: Protocol) -> None:
        part = model.parts[name]
        self.params = list(part.parameters())
        self.optimizer = make_optimizer(protocol.optimizers[name], part)
        self.length = protocol.counts[name]
        self.window, self.micro_batch = Mark(), Mark()
        self.newest: int | None = None
        self.applied = self.skipped = self.count = 0
        self.settle()

    def settle(self) -> None:
        self.grads: list[Tensor | None] = [None] * len(self.params)
        self.kept = self.dropped = 0
        self.window.trails = None

    def before_pass(self, iteration: int, trails: dict[str, Trail]) -> None:
        is_new = iteration != self.newest
        self.newest = iteration
        is_empty = not self.kept + self.dropped
        if self.window.trails is None or (is_new and is_empty):
            self.window.set(trails)
        if self.micro_batch.trails is None or is_new:
            self.micro_batch.set(trails)

    def update(
        self, update: Update, loss: Tensor, trails: dict[str, Trail]
    ) -> None:
        self.count += 1
        loss = loss / self.length
        grads = self.gradients(update, loss)
        accumulates = self.length > 1
        if accumulates and not loss.isfinite() and not _finite(grads):
            self.dropped += 1
            self.micro_batch.go_back(trails)
        else:
            self.kept += 1
            self.micro_batch.trails = None
            self.grads = [
                new if old is None else old + new
                for old, new in zip(self.grads, grads)
            ]
        if self.count % self.length == 0:
            self.step(trails)

    def gradients(self, update: Update, loss: Tensor) -> list[Tensor]:
        several = [
            list(
                torch.autograd.grad(
                    one, self.params, retain_graph=number < update.losses
                )
            )
            for number, one in enumerate([loss, 0.5 * loss], start=1)
            if number <= update.losses
        ]
        if update.fault == 'gradient':
            for grads in several:
                grads[0].view(-1)[0] = INF
        return [sum(one[1:], one[0]) for one in zip(*several)]

    def step(self, trails: dict[str, Trail]) -> None:
        if self.kept and _finite(self.grads):
            share = self.kept / (self.kept + self.dropped)
            for param, grad in zip(self.params, self.grads):
                param.grad = grad * (1 / share) if share < 1 else grad
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.applied += 1
        else:
            self.window.go_back(trails)
            self.skipped += 1
        self.settle()


class PlainReference:
    """Trains by a protocol."""

    def __init__(self, protocol: Protocol) -> None:
        self.model = Parts(protocol)
        self.protocol = protocol
        self.norms: dict[str, nn.BatchNorm1d] = {
            name: module
            for name, module in self.model.named_modules()
            if isinstance(module, nn.BatchNorm1d)
        }
        self.trails = {name: Trail() for name in self.norms}
        self.optimizing = {
            name: Optimizing(self.model, name, protocol)
            for name in protocol.counts
        }
        for name, module in self.norms.items():
            module.register_forward_pre_hook(self._noter(name))

    def _noter(self, name: str) -> Any:
        def note(module: nn.Module, inputs: tuple[Tensor]) -> None:
            trail = self.trails[name]
            trail.inputs.append(inputs[0].detach().clone())
            trail.count += 1

        return note

    def train(self) -> None:
        for number, updates in enumerate(self.protocol.iterations):
            is_first = number in self.protocol.passes_first
            losses = []
            for one in updates:
                losses.append(self._pass(one, number))
                if not is_first:
                    self._update(one, losses[-1])
            if is_first:
                for one, loss in zip(updates, losses):
                    self._update(one, loss)

    def _pass(self, update: Update, number: int) -> Tensor:
        for name in update.contexts:
            self.optimizing[name].before_pass(number, self.trails)
        return self.model.loss(update)

    def _update(self, update: Update, loss: Tensor) -> None:
        if not update.idle:
            self.optimizing[update.name].update(update, loss, self.trails)

    def state_dict(self) -> dict[str, Tensor]:
        """Of the model, with the statistics of the passes that count."""
        state = dict(self.model.state_dict())
        for name, module in self.norms.items():
            fresh = nn.BatchNorm1d(module.num_features)
            for inputs in self.trails[name].inputs:
                fresh(inputs)
            state[f'{name}.running_mean'] = fresh.running_mean
            state[f'{name}.running_var'] = fresh.running_var
            count = torch.tensor(self.trails[name].count)
            state[f'{name}.num_batches_tracked'] = count
        return state


def _finite(tensors: Any) -> bool:
    return all(bool(one.isfinite().all()) for one in tensors)
