"""Runs whose models step as they like, and a hook that hears of it all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper, OptimWrapperDict
from torch import nn

from mmstable import SafeOptimWrapper
from tests.toys import NAN, ToyModel, toy_runner

# Any hook of mmstable brings the monitor; this one does nothing on one rank.
ANY = dict(type='mmstable.ReplicaCheckHook')


class Listener(Hook):
    """Notes all that the monitor publishes."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int, str]] = []
        self.reports: list[Any] = []
        self.bad: list[Any] = []
        self.events: list[Any] = []

    def after_step(self, runner, name, report):
        self.steps.append((name, report.iteration, report.outcome.value))
        self.reports.append(report)

    def after_bad_step(self, runner, report):
        self.bad.append(report)

    def after_event(self, runner, event):
        self.events.append(event)


class Repeated(ToyModel):
    """Steps its wrapper several times in an iteration.

    Args:
        bad: Which of the steps, counted from 0, have a NaN loss.
        times: How many steps there are.
        iterations: The iterations that this happens in; all if empty.
    """

    def __init__(self, bad=(0,), times=2, iterations=()) -> None:
        super().__init__()
        self.bad, self.times, self.iterations = bad, times, iterations
        self.count = 0

    def train_step(self, data, optim_wrapper):
        self.count += 1
        data = self.data_preprocessor(data, True)
        hits = not self.iterations or self.count in self.iterations
        for index in range(self.times):
            with optim_wrapper.optim_context(self):
                loss = self(**data, mode='loss')['loss']
            is_bad = hits and index in self.bad
            optim_wrapper.update_params(loss * NAN if is_bad else loss)
        return dict(loss=loss.detach())


class ThreeBackwards(ToyModel):
    """One step from three losses, as with two heads and a penalty."""

    def __init__(self, bad=()) -> None:
        super().__init__()
        self.bad, self.count = bad, 0

    def train_step(self, data, optim_wrapper):
        self.count += 1
        data = self.data_preprocessor(data, True)
        factor = NAN if self.count in self.bad else 1.0
        with optim_wrapper.optim_context(self):
            loss = self(**data, mode='loss')['loss']
        optim_wrapper.backward(loss, retain_graph=True)
        optim_wrapper.backward(loss * factor, retain_graph=True)
        optim_wrapper.backward(0.1 * loss)
        optim_wrapper.step()
        optim_wrapper.zero_grad()
        return dict(loss=loss * factor, loss_aux=loss * factor, loss_ok=loss)


class Adversaries(ToyModel):
    """A generator stepped twice an iteration, a critic every other one.

    A third wrapper is there, but never stepped.
    """

    rates = (('generator', 2, 1), ('critic', 1, 2), ('idle', 0, 1))

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def train_step(self, data, optim_wrapper):
        self.count += 1
        data = self.data_preprocessor(data, True)
        for name, times, every in self.rates:
            for _ in range(times if self.count % every == 0 else 0):
                wrapper = optim_wrapper[name]
                with wrapper.optim_context(self):
                    loss = self(**data, mode='loss')['loss']
                wrapper.update_params(loss)
                optim_wrapper.zero_grad()
        return dict(loss=loss.detach())

    def wrappers(self, idle: type[OptimWrapper] = SafeOptimWrapper):
        def sgd(part: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.SGD(part.parameters(), lr=0.1)

        return OptimWrapperDict(
            generator=SafeOptimWrapper(sgd(self.net.backbone)),
            critic=SafeOptimWrapper(sgd(self.net.head)),
            idle=idle(sgd(self.net.norm)),
        )


def train(
    work_dir: Any,
    model: nn.Module,
    wrapper: Any = None,
    hooks: Iterable[Any] = (ANY,),
    **kwargs: Any,
) -> tuple[Any, Listener]:
    """Train, and give the runner and all that its hooks were told."""
    listener = Listener()
    runner = toy_runner(
        work_dir, wrapper, hooks=(*hooks, listener), model=model, **kwargs
    )
    runner.train()
    return runner, listener


def scalar(runner: Any, key: str) -> list[float]:
    return runner.message_hub.get_scalar(f'train/{key}').data[0].tolist()
