"""Steps of mmengine's own wrappers, observed and clipped from outside."""

from __future__ import annotations

import math
import time
from functools import partial, wraps
from types import MethodType
from typing import Any, Callable

import torch
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from mmengine.utils import digit_version
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mmstable import runner_view
from mmstable.events import Culprit, Fault, Outcome, StepReport
from mmstable.events.monitor import RunMonitor, StepQueue, StepSource
from mmstable.optim.clipping import Clip
from mmstable.optim.grad_health import ParameterNames
from mmstable.optim.pending_step import PendingStep, live_gradients
from mmstable.optim.update import Update

Hook = Callable[[Optimizer, tuple, dict], None]


def before_step(optimizer: Optimizer, hook: Hook) -> Callable[[], None]:
    """Call a hook before each step of an optimizer.

    Before torch 2.3, compiling anything in a process removes the hooks of
    all optimizers; there, the ``step`` of this one is replaced.

    Args:
        optimizer (Optimizer): The optimizer.
        hook (Callable): Called as a step pre-hook of torch is, but it cannot
            change the arguments.

    Returns:
        Callable: Ends it.
    """
    if digit_version(torch.__version__) < digit_version('2.3'):
        return _replace_step(optimizer, hook)
    return optimizer.register_step_pre_hook(hook).remove


def _replace_step(optimizer: Any, hook: Hook) -> Callable[[], None]:
    hooks = [hook]
    previous = optimizer.step
    was_replaced = 'step' in vars(optimizer)

    def step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        for one in hooks:
            one(self, args, kwargs)
        return previous(*args, **kwargs)

    # Schedulers mark the function to know that they have replaced it.
    vars(step).update(vars(previous))
    # Bound, because schedulers take a method apart to replace it.
    optimizer.step = replaced = MethodType(step, optimizer)

    def end() -> None:
        hooks.clear()
        # Other code may have replaced it since, and calls this one.
        if vars(optimizer).get('step') is not replaced:
            return
        if was_replaced:
            optimizer.step = previous
        else:
            del optimizer.step

    return end


class StockObserver:
    """Reports the steps of a wrapper of mmengine, and clips for it.

    While it is attached, it stands in for ``backward`` and ``step`` of the
    wrapper: losses are noted, and gradients are measured once, before the
    wrapper unscales and clips them; a hook before its update notes whether
    the optimizer was reached, which it is not if mmengine's
    ``AmpOptimWrapper`` skips the step.

    Args:
        wrapper (OptimWrapper): A wrapper of mmengine.
        model (Module): The model that it trains.
    """

    is_stock = True

    def __init__(self, wrapper: OptimWrapper, model: Module) -> None:
        self.steps = StepQueue(is_observed=True)
        self._wrapper: Any = wrapper
        self._scaler = runner_view.loss_scaler(wrapper)
        self._names = ParameterNames(wrapper.optimizer)
        self._names.bind_model(model)
        self._update = Update(wrapper.optimizer, self._names, None)
        self._remove: list[Callable[[], Any]] = []
        self._window = PendingStep()
        # The gradients of the step that is being made, if they are good.
        self._pending: tuple[PendingStep, list[float]] | None = None
        self._is_updated = False

    @property
    def clip(self) -> Clip | None:
        """How gradients are clipped, besides what the wrapper does."""
        return self._update.clip

    @clip.setter
    def clip(self, clip: Clip) -> None:
        self._update.clip = clip

    def attach(self) -> None:
        """Observe the wrapper."""
        wrapper = self._wrapper
        self._remove = [before_step(wrapper.optimizer, self._before_update)]
        self._original_step = self._replace('step', self._step)
        self._original_backward = self._replace('backward', self._backward)

    def _replace(self, name: str, method: Callable) -> Callable:
        """Stand in for a method of the wrapper; the original."""
        wrapper, original = self._wrapper, getattr(self._wrapper, name)
        if name in vars(wrapper):
            self._remove.append(lambda: setattr(wrapper, name, original))
        else:
            self._remove.append(lambda: delattr(wrapper, name))
        if hasattr(original, '_with_counter'):
            # Schedulers warn of a step without their mark.
            method = wraps(original)(partial(method))
        setattr(wrapper, name, method)
        return original

    def detach(self) -> None:
        """Leave the wrapper as it was."""
        while self._remove:
            self._remove.pop()()

    def record_losses(self, outputs: Any) -> None:
        """Do nothing: a step of mmengine is reported when it is made."""

    def _backward(self, loss: Tensor, **kwargs: Any) -> None:
        self._window.keep(loss)
        self._original_backward(loss, **kwargs)

    def _step(self, **kwargs: Any) -> None:
        step, self._window = self._window, PendingStep()
        live = live_gradients(self._wrapper.optimizer)
        if not live[1]:
            self._original_step(**kwargs)
            return
        queue, scale, step.time = self.steps, self._read_scale(), time.time()
        step.loss_scale = scale
        step.measure(live, self._update.plan_for(live[0]))
        norms, loss, _ = step.read()
        culprits: tuple[Culprit, ...] = ()
        if not all(map(math.isfinite, norms)):
            culprits = tuple(
                Culprit(self._names[param], kind)
                for param, kind in step.find_culprits()
            )
            norms = [one / scale for one in step.wide_part_norms().tolist()]
        coefs = self._update.coefficients(step.plan, norms)
        self._pending = None if culprits else (step, coefs)
        is_bad_loss = not math.isfinite(loss) and step.loss is not None
        queue.has_bad_loss |= is_bad_loss
        self._is_updated = False
        self._original_step(**kwargs)
        self._pending = None
        facts: dict[str, Any] = {}
        if culprits:
            is_scaled = self._scaler is not None
            facts['fault'] = Fault.OVERFLOW if is_scaled else Fault.NAN_GRAD
        elif self._is_updated:
            facts = self._update.note_applied(step, norms, coefs)
            if is_bad_loss:
                facts['fault'] = Fault.NAN_LOSS
            order = step.plan.norm_type
            queue.norms = self._names, step.params, step.norms, scale, order
        else:
            # Skipped for a reason unknown here.
            return
        next_scale = self._read_scale()
        queue.add(
            StepReport(
                iteration=queue.iteration or 0,
                time=step.time,
                wrapper=queue.wrapper,
                outcome=(
                    Outcome.APPLIED if self._is_updated else Outcome.SKIPPED
                ),
                loss_scale=scale,
                next_loss_scale=next_scale,
                loss=step.reported_loss,
                culprits=culprits,
                # It has no floor; below 1 it does not help any more.
                scale_can_fall=bool(culprits) and 1.0 <= next_scale < scale,
                **facts,
            ),
            PendingStep().bad_terms,
        )

    def _before_update(
        self, optimizer: Optimizer, args: tuple, kwargs: dict
    ) -> None:
        # A fused optimizer unscales and skips on its own.
        scale = getattr(optimizer, 'grad_scale', None)
        self._is_updated = not getattr(optimizer, 'found_inf', None)
        if self._pending is not None and self.clip is not None:
            step, coefs = self._pending
            step.grad_scale = 1.0 if scale is None else float(scale)
            self._update.clip_gradients(step, coefs)

    def _read_scale(self) -> float:
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())


_STAGES = ('after_step', 'after_bad_step', 'after_event')


def monitor_of(runner: Runner) -> RunMonitor:
    """The one monitor of a runner; the first who asks registers it."""
    monitor = RunMonitor.of(runner)
    if monitor is None:
        monitor = RunMonitor(find_sources)
        runner_view.add_hook(runner, monitor)
    return monitor


def find_sources(runner: Runner) -> dict[str, StepSource]:
    """Safe wrappers, and observers of others if any hook listens to these.

    Returns:
        dict: The sources of steps, by the name of their wrapper.
    """
    observes = any(
        getattr(hook, 'observes_stock', True)
        for hook in runner.hooks
        if any(hasattr(hook, stage) for stage in _STAGES)
    )
    sources: dict[str, StepSource] = {}
    for name, wrapper in runner_view.wrappers(runner).items():
        if hasattr(wrapper, 'record_losses'):
            # For the line that it logs when it meets the model.
            wrapper.steps.wrapper = name
            wrapper.bind_model(runner.model)
            sources[name] = wrapper
        elif observes:
            sources[name] = StockObserver(wrapper, runner.model)
    return sources
