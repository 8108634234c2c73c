"""Steps with a closure, as those of LBFGS, in a safe wrapper."""

from __future__ import annotations

import logging
import time
from typing import Any, Callable

from mmengine.logging import print_log
from torch.optim import Optimizer

from mmstable.errors import ConfigError
from mmstable.events import Culprit, Outcome, StepReport
from mmstable.events.step_queue import StepQueue
from mmstable.events.step_report import classify
from mmstable.messages import _
from mmstable.optim.buffer_protection import BufferProtection
from mmstable.optim.closure_step import (
    BadStart,
    ClosureOutcome,
    step_with_closure,
)
from mmstable.optim.parameter_names import ParameterNames
from mmstable.optim.safe_step import SafeStep
from mmstable.optim.update import Update
from mmstable.optim.window import Window


class SafeClosure:
    """Steps of an optimizer that computes its gradients by itself.

    Args:
        optimizer (Optimizer): The optimizer.
        update (Update): What is known of how it updates.
        names (ParameterNames): What to call the culprits.
        buffers (BufferProtection): Restores buffers if a step is skipped.
        steps (StepQueue): Takes the report of every step.
        safe_step (SafeStep): The steps without a closure.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        update: Update,
        names: ParameterNames,
        buffers: BufferProtection,
        steps: StepQueue,
        safe_step: SafeStep,
    ) -> None:
        self._optimizer = optimizer
        self._update = update
        self._names = names
        self._buffers = buffers
        self._steps = steps
        self._safe_step = safe_step
        self._warned_of_clip = False

    def step(
        self,
        iteration: int,
        is_scaled: bool,
        closure: Callable[[], Any],
        **kwargs: Any,
    ) -> None:
        """Step, or leave everything as it was if something is not finite.

        Args:
            iteration (int): Training iterations done, this one included.
            is_scaled (bool): Whether losses are scaled.
            closure (Callable): Computes the loss and its gradients.
            **kwargs: More arguments of ``optimizer.step``.
        """
        if is_scaled:
            raise ConfigError(
                'optim_wrapper.step: a `closure` cannot be used with a loss '
                'scale, because the optimizer would see scaled gradients. '
                "Train with dtype='bfloat16', or with SafeOptimWrapper."
            )
        if self._update.clip is not None:
            self._warn_of_clip()

        def watched() -> Any:
            loss = closure()
            if self._safe_step.is_lost:
                raise BadStart
            return loss

        self._safe_step.resolve()
        outcome = step_with_closure(self._optimizer, watched, **kwargs)
        window = self._safe_step.end_window()
        if outcome.is_bad:
            self._update.forget()
            self._buffers.undo_step()
            facts = self._describe_bad(outcome, window)
        else:
            self._buffers.keep_step()
            facts = dict(outcome=Outcome.APPLIED, grad_norm=outcome.grad_norm)
        report = StepReport(
            iteration=iteration,
            time=time.time(),
            wrapper=self._steps.wrapper,
            loss_scale=1.0,
            next_loss_scale=1.0,
            **facts,
        )
        self._steps.add(report, window.bad_terms)

    def _describe_bad(
        self, outcome: ClosureOutcome, window: Window
    ) -> dict[str, Any]:
        is_finite = outcome.losses_are_finite and not window.dropped
        return dict(
            outcome=Outcome.SKIPPED,
            fault=classify(is_finite, scale_can_shrink=False),
            culprits=tuple(
                Culprit(self._names[param], kind)
                for param, kind in outcome.culprits
            ),
        )

    def _warn_of_clip(self) -> None:
        if not self._warned_of_clip:
            self._warned_of_clip = True
            print_log(
                _(
                    'mmstable: `clip_grad` has no effect on steps with a '
                    '`closure`: the optimizer computes its gradients in the '
                    'closure. Clip there.'
                ),
                logger='current',
                level=logging.WARNING,
            )
