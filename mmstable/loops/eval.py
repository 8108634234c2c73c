"""Validation and test that do not end a run for lack of memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.runner import TestLoop, ValLoop
from mmengine.runner.amp import autocast

from mmstable import runner_view
from mmstable.batch import batch_size, name_sample, take_samples
from mmstable.dist import collectives
from mmstable.events.monitor import RunMonitor
from mmstable.messages import _
from mmstable.oom.report import (
    PHASES,
    Failure,
    OomReporter,
    empty_cache,
    is_out_of_memory,
    release,
    was_inside,
)
from mmstable.registry import LOOPS, register_globally

MISSING = 'missing_samples'


class _SafeEvalLoop:
    """What both loops do when memory runs out.

    The batch is run once more with an empty cache, then in halves, down to
    single samples. A sample that does not fit alone is reported and left
    out, and the metrics say how many are missing. No gradients are needed,
    so the outputs are those of the whole batch.
    """

    _phase: str
    _step: str
    _losses: str
    runner: Any
    evaluator: Any
    fp16: bool

    def run(self) -> dict:
        """Evaluate."""
        # The most samples that fit at once, as far as that is known.
        self._most: int | None = None
        self._missing = 0
        self._reporter = OomReporter(self.runner)
        with self._counting():
            return super().run()  # type: ignore[misc]

    @torch.no_grad()
    def run_iter(self, idx: int, data_batch: Any) -> None:
        """Evaluate one batch.

        Args:
            idx (int): Its number.
            data_batch (Any): What the data loader gave.
        """
        if self._most is None:
            try:
                super().run_iter(idx, data_batch)  # type: ignore[misc]
                return
            except Exception as error:
                if not self._is_ours(error):
                    raise
                failure = Failure.of(error, self._device())
                release(error)
        else:
            failure = None
            self._call('before', idx, data_batch=data_batch)
        self._run_parts(idx, data_batch, failure)

    def _is_ours(self, error: BaseException) -> bool:
        # Metrics that have seen a part of the batch cannot forget it.
        return is_out_of_memory(error) and not was_inside(
            error, self.evaluator
        )

    def _run_parts(
        self, idx: int, batch: Any, failure: Failure | None
    ) -> None:
        if failure is not None:
            empty_cache(self._device())
        size = batch_size(batch) or 1
        outputs, kept, parts = [], [], 0
        pending = _cut(list(range(size)), self._most or size)
        while pending:
            samples = pending.pop(0)
            given = (
                batch
                if len(samples) == size
                else (take_samples(batch, samples))
            )
            found, error = self._try(given)
            if error is None:
                outputs += found
                kept += samples
                parts += 1
                continue
            failure = failure or error
            empty_cache(self._device(), everything=False)
            if len(samples) > 1:
                self._most = (len(samples) + 1) // 2
                pending = _cut(samples, self._most) + pending
            else:
                self._missing += 1
        if failure is not None:
            self._report(idx, batch, failure, kept, parts)
        if kept:
            if len(kept) < size:
                batch = take_samples(batch, kept)
            self.evaluator.process(data_samples=outputs, data_batch=batch)
            self._call('after', idx, data_batch=batch, outputs=outputs)

    def _try(self, batch: Any) -> tuple[list, Failure | None]:
        """Outputs for some samples; or why there are none."""
        try:
            with autocast(enabled=self.fp16):
                outputs = getattr(self.runner.model, self._step)(batch)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failure = Failure.of(error, self._device())
            release(error)
            return [], failure
        if runner_view.take_losses is not None:
            losses = getattr(self, self._losses)
            outputs, losses = runner_view.take_losses(outputs, losses)
            setattr(self, self._losses, losses)
        return list(outputs), None

    def _call(self, when: str, idx: int, **kwargs: Any) -> None:
        stage = 'val' if self._phase == 'validation' else 'test'
        self.runner.call_hook(f'{when}_{stage}_iter', batch_idx=idx, **kwargs)

    def _device(self) -> torch.device:
        return next(self.runner.model.parameters()).device

    def _report(
        self, idx: int, batch: Any, failure: Failure, kept: list, parts: int
    ) -> None:
        size = batch_size(batch) or 1
        case = self._reporter.open(failure, batch, self.runner.iter)
        lost = [one for one in range(size) if one not in kept]
        names = [name_sample(batch, one) or f'#{one}' for one in lost]
        self._reporter.log(
            _(
                'out of memory in {phase}, batch {batch} ({shapes}): it was '
                'run in {parts:part|parts}, with the same outputs.{lost} To '
                'avoid that: {loader}.batch_size={size}.',
                phase=_(PHASES[self._phase]),
                batch=idx,
                shapes=case.shapes,
                parts=parts,
                lost=_(
                    ' {count:sample does|samples do} not fit even alone, and '
                    'are left out: {samples}.',
                    count=len(lost),
                    samples=names,
                )
                if lost
                else '',
                loader=f'{self._step.split("_")[0]}_dataloader',
                size=self._most or size,
            )
        )
        # Hooks that write events do so while a run is trained.
        if RunMonitor.of(self.runner) is None or self._phase == 'test':
            return
        rung = f'split/{parts}' if parts > 1 else 'retry'
        self._reporter.emit(
            case,
            'skip' if lost else rung,
            phase=self._phase,
            **(dict(samples=tuple(names)) if lost else {}),
        )

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Have the metrics say how many samples are missing."""
        evaluator = self.evaluator
        evaluate = evaluator.evaluate

        def count(size: int) -> dict:
            metrics = evaluate(size)
            missing = collectives.sum_of_ranks(self._missing)
            if missing:
                metrics[MISSING] = missing
                self._reporter.log(
                    _(
                        'these metrics are without {count:sample|samples} of '
                        '{size} that did not fit in memory.',
                        count=missing,
                        size=size,
                    )
                )
            return metrics

        vars(evaluator)['evaluate'] = count
        try:
            yield
        finally:
            vars(evaluator).pop('evaluate')


def _cut(samples: list[int], most: int) -> list[list[int]]:
    return [
        samples[begin : begin + most] for begin in range(0, len(samples), most)
    ]


@register_globally(LOOPS)
class SafeValLoop(_SafeEvalLoop, ValLoop):
    """``ValLoop`` that cuts batches which do not fit in memory.

    Otherwise it does what ``ValLoop`` does, with the same arguments.
    """

    _phase, _step, _losses = 'validation', 'val_step', 'val_loss'


@register_globally(LOOPS)
class SafeTestLoop(_SafeEvalLoop, TestLoop):
    """``TestLoop`` that cuts batches which do not fit in memory.

    Otherwise it does what ``TestLoop`` does, with the same arguments.
    """

    _phase, _step, _losses = 'test', 'test_step', 'test_loss'
