"""Random ways to train: what a ``train_step`` may do, and with what fault."""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from mmengine.model import BaseModel
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.toys import INF, NAN, spoiled

FAULTS = ('loss', 'gradient', 'input', 'constant')


@dataclass
class Update:
    """A forward pass and, unless it is idle, an update by its loss.

    Args:
        name: The optimizer wrapper.
        seed: Of the inputs.
        contexts: The wrappers whose ``optim_context`` is around the pass,
            the outer one first.
        fault: What is wrong with it, if anything.
        twice: Whether the part is called twice in one pass.
        through: The part that the loss is computed through, too.
        idle: Whether the loss is used for nothing.
        recomputed: Whether the part runs again in the backward pass.
        losses: How many losses are back-propagated for it, one by one.
    """

    name: str
    seed: int
    contexts: tuple[str, ...]
    fault: str | None = None
    twice: bool = False
    through: str | None = None
    idle: bool = False
    recomputed: bool = False
    losses: int = 1


@dataclass
class Protocol:
    """How a model is trained.

    Args:
        counts: ``accumulative_counts`` by wrapper.
        optimizers: 'sgd', 'adamw' or 'fused' by wrapper.
        shared: Whether all parts share one more norm layer.
        iterations: The updates of each iteration.
        passes_first: The iterations that make all forward passes before any
            update.
    """

    counts: dict[str, int]
    optimizers: dict[str, str]
    shared: bool
    iterations: list[list[Update]] = field(default_factory=list)
    passes_first: set[int] = field(default_factory=set)


def random_protocol(seed: int, length: int = 8) -> Protocol:
    rng = random.Random(seed)
    names = ['a', 'b'][: rng.choice([1, 2])]
    counts = {name: rng.randint(1, 4) for name in names}
    protocol = Protocol(
        counts,
        {name: _optimizer(rng, counts[name]) for name in names},
        shared=rng.random() < 0.3,
    )
    styles = {name: _contexts(rng, name, names) for name in names}
    if any(not style for style in styles.values()):
        # Who is never inside a context, is not inside that of another one.
        styles = {name: style and (name,) for name, style in styles.items()}
    is_mixed = rng.random() < 0.2
    for number in range(length):
        chosen = [rng.choice(names) for _ in range(rng.randint(1, 3))]
        if len(names) == 2 and rng.random() < 0.25:
            chosen = rng.sample(names, 2)
            protocol.passes_first.add(number)
        updates = [
            Update(
                name,
                rng.randrange(2**31),
                styles[name],
                fault=rng.choice(FAULTS) if rng.random() < 0.3 else None,
                twice=rng.random() < 0.2,
                recomputed=rng.random() < 0.15,
                losses=rng.choice([1, 1, 1, 2]) if counts[name] == 1 else 1,
            )
            for name in chosen
        ]
        for one in updates:
            if is_mixed and rng.random() < 0.3:
                one.contexts = ()
            if number in protocol.passes_first:
                continue
            if len(names) == 2 and rng.random() < 0.3:
                (one.through,) = set(names) - {one.name}
            one.idle = bool(one.contexts) and rng.random() < 0.15
        protocol.iterations.append(updates)
    return protocol


def _optimizer(rng: random.Random, counts: int) -> str:
    # A fused optimizer averages what is left of a window in another order.
    return rng.choice(['sgd', 'adamw', 'fused'][: 3 if counts == 1 else 2])


def _contexts(
    rng: random.Random, name: str, names: list[str]
) -> tuple[str, ...]:
    return rng.choice(
        [(name,), (name,), (), tuple(rng.sample(names, len(names)))]
    )


class Parts(BaseModel):
    """One part for each wrapper, all with BatchNorm."""

    def __init__(self, protocol: Protocol) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ModuleDict(
            {
                name: nn.Sequential(
                    nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)
                )
                for name in protocol.counts
            }
        )
        self.common = nn.BatchNorm1d(4, affine=False)
        self.protocol = protocol

    def forward(self, inputs, mode='tensor'):
        return inputs

    def loss(self, update: Update) -> Tensor:
        generator = torch.Generator().manual_seed(update.seed)
        x = torch.randn(6, 4, generator=generator)
        y = torch.randn(6, 4, generator=generator)
        if update.fault == 'input':
            x[0, 0] = NAN
        part = self.parts[update.name]
        if update.recomputed:
            result = checkpoint(part, x, use_reentrant=False)
        else:
            result = part(x)
        if update.twice:
            result = result + part(0.5 * x)
        if self.protocol.shared:
            result = self.common(result)
        if update.through is not None:
            other = self.parts[update.through]
            other.requires_grad_(False)
            result = other(result)
            other.requires_grad_(True)
        loss = (result - y).square().mean()
        if update.fault == 'loss':
            loss = loss * NAN
        return loss + INF if update.fault == 'constant' else loss

    def train_step(self, data, optim_wrapper):
        number = self.iteration = getattr(self, 'iteration', -1) + 1
        updates = self.protocol.iterations[number]
        if number in self.protocol.passes_first:
            losses = [self._pass(one, optim_wrapper) for one in updates]
            for one, loss in zip(updates, losses):
                self._update(one, loss, optim_wrapper)
        else:
            for one in updates:
                loss = self._pass(one, optim_wrapper)
                self._update(one, loss, optim_wrapper)
        return dict(loss=torch.tensor(0.0))

    def _pass(self, update: Update, wrappers) -> Tensor:
        with ExitStack() as stack:
            for name in update.contexts:
                stack.enter_context(wrappers[name].optim_context(self))
            return self.loss(update)

    def _update(self, update: Update, loss: Tensor, wrappers) -> None:
        if update.idle:
            return
        is_bad = update.fault == 'gradient'
        name = f'parts.{update.name}.0.weight' if is_bad else None
        wrapper = wrappers[update.name]
        with spoiled(self, name, INF):
            if update.losses == 1:
                wrapper.update_params(loss)
                return
            wrapper.backward(loss, retain_graph=True)
            wrapper.backward(0.5 * loss)
        wrapper.step()
        wrapper.zero_grad()


def make_optimizer(kind: str, part: nn.Module) -> torch.optim.Optimizer:
    if kind == 'sgd':
        return torch.optim.SGD(part.parameters(), lr=0.05, momentum=0.9)
    return torch.optim.AdamW(part.parameters(), lr=0.01, fused=kind == 'fused')
