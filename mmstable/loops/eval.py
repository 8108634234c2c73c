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
    OomReport,
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
        with self._counting():
            return super().run()  # type: ignore[misc]

    @torch.no_grad()
    def run_iter(self, idx: int, data_batch: Any) -> None:
        """Evaluate one batch.

        Args:
            idx (int): Its number.
            data_batch (Any): What the data loader gave.
        """
        report = None
        if self._most is None:
            try:
                super().run_iter(idx, data_batch)  # type: ignore[misc]
                return
            except Exception as error:
                # Metrics that have seen a part of it cannot forget that.
                if was_inside(error, self.evaluator):
                    raise
                report = self._open_report(error, data_batch)
            empty_cache(report.device)
        else:
            self._call('before', idx, data_batch=data_batch)
        self._run_parts(idx, data_batch, report)

    def _open_report(self, error: Exception, batch: Any) -> OomReport:
        if not is_out_of_memory(error):
            raise error
        report = OomReport(self.runner, error, batch, self.runner.iter)
        release(error)
        return report

    def _run_parts(
        self, idx: int, batch: Any, report: OomReport | None
    ) -> None:
        size = batch_size(batch) or 1
        outputs, kept, parts = [], [], 0
        pending = _cut(list(range(size)), self._most or size)
        while pending:
            samples = pending.pop(0)
            whole = len(samples) == size
            try:
                outputs += self._predict(
                    batch if whole else take_samples(batch, samples)
                )
                kept += samples
                parts += 1
                continue
            except Exception as error:
                failed = self._open_report(error, batch)
            report = report or failed
            empty_cache(report.device, everything=False)
            if len(samples) > 1:
                self._most = (len(samples) + 1) // 2
                pending = _cut(samples, self._most) + pending
            else:
                self._missing += 1
        if report is not None:
            lost = [one for one in range(size) if one not in kept]
            names = [name_sample(batch, one) or f'#{one}' for one in lost]
            self._report(idx, report, names, parts, self._most or size)
        if kept:
            if len(kept) < size:
                batch = take_samples(batch, kept)
            self.evaluator.process(data_samples=outputs, data_batch=batch)
            self._call('after', idx, data_batch=batch, outputs=outputs)

    def _predict(self, batch: Any) -> list:
        with autocast(enabled=self.fp16):
            outputs = getattr(self.runner.model, self._step)(batch)
        if runner_view.take_losses is not None:
            losses = getattr(self, self._losses)
            outputs, losses = runner_view.take_losses(outputs, losses)
            setattr(self, self._losses, losses)
        return list(outputs)

    def _call(self, when: str, idx: int, **kwargs: Any) -> None:
        stage = self._step.partition('_')[0]
        self.runner.call_hook(f'{when}_{stage}_iter', batch_idx=idx, **kwargs)

    def _report(
        self,
        idx: int,
        report: OomReport,
        lost: list[str],
        parts: int,
        size: int,
    ) -> None:
        report.log(
            _(
                'out of memory in {phase}, batch {batch} ({shapes}): it was '
                'run in {parts:part|parts}, with the same outputs.{lost} To '
                'avoid that: {loader}.batch_size={size}.',
                phase=_(PHASES[self._phase]),
                batch=idx,
                shapes=report.shapes,
                parts=parts,
                lost=_(
                    ' {count:sample does|samples do} not fit even alone, and '
                    'are left out: {samples}.',
                    count=len(lost),
                    samples=lost,
                )
                if lost
                else '',
                loader=f'{self._step.partition("_")[0]}_dataloader',
                size=size,
            )
        )
        # Hooks that write events do so while a run is trained.
        if RunMonitor.of(self.runner) is None or self._phase == 'test':
            return
        rung = f'split/{parts}' if parts > 1 else 'retry'
        more = dict(samples=tuple(lost)) if lost else {}
        report.emit('skip' if lost else rung, phase=self._phase, **more)

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
                text = _(
                    'these metrics are without {count:sample|samples} of '
                    '{size} that did not fit in memory.',
                    count=missing,
                    size=size,
                )
                self.runner.logger.warning(f'mmstable: {text}')
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
