"""Evidence before an action: repeat a held step, compare old weights.

A held step is skipped only if it is not the same when it is repeated. A
rollback needs old weights that are clearly better on the newest batches.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import get_rank, get_world_size, is_main_process
from mmengine.runner import Runner

from mmstable.batch import (
    batch_size,
    name_sample,
    take_samples,
    tensors_in,
)
from mmstable.dist import collectives as dist
from mmstable.events.records import Fault, HeldStep, HeldVerdict, StepReport
from mmstable.loops.question import Answer, CannotAsk
from mmstable.loops.train_step import StepRecord, TrainStep
from mmstable.messages import N_, _
from mmstable.optim.pending_step import PendingStep, StepHold
from mmstable.state.data_position import DataPosition, batch_indices

# Questions, and the iterations that they may be asked in: 1 %.
_MOST_QUESTIONS, _AMONG = 10, 1000
# Repeated numbers are the same up to this factor.
_SAME = 2.0
# Held steps of a run whose samples are looked for.
_MOST_NAMED = 10
# One half of a batch is to blame if it is so many times the other.
_CLEARLY = 3.0
# How much better old weights must be.
_BETTER = 10.0
# Samples that the last line names; the file has all of them.
_MOST_SAMPLES = 20


class StepJudge:
    """Repeats held steps, within a budget, and keeps what came out.

    Args:
        runner (Runner): The runner.
        skips (bool): Whether held steps are skipped without a question, as
            the user has chosen.
    """

    # Skipped steps in a row after which one is applied: a new level.
    PATIENCE = 20

    def __init__(self, runner: Runner, skips: bool) -> None:
        loop: Any = runner.train_loop
        # Another loop runs its steps itself: batches are noted beside it.
        self.is_beside = not hasattr(loop, 'train_step')
        self.train_step: TrainStep = (
            TrainStep(runner) if self.is_beside else loop.train_step
        )
        if self.is_beside:
            self.train_step.bind()
        self.train_step.expect_questions()
        self.train_step.find_counters()
        self._skips = skips
        self.skipped_in_a_row = 0
        self._asked: deque[int] = deque(maxlen=_MOST_QUESTIONS)
        self._named = 0
        # Held steps that are to be published with their iteration.
        self.held: list[HeldStep] = []

    def judge(
        self,
        name: str,
        hold: StepHold,
        step: PendingStep,
        norm: float,
        loss: float,
    ) -> Fault | None:
        """Judge a held step.

        Args:
            name (str): The optimizer wrapper's name.
            hold (StepHold): The limits that held it.
            step (PendingStep): The step.
            norm (float): The norm of its gradients.
            loss (float): Its loss.

        Returns:
            Fault: What to skip it for; None if it is to be applied.
        """
        if self._skips:
            self.skipped_in_a_row += 1
            is_new_level = self.skipped_in_a_row > self.PATIENCE
            return None if is_new_level else Fault.SPIKE
        is_norm = norm > hold.norm.limit
        verdict, again, reason = HeldVerdict.NOT_ASKED, None, ''
        samples: tuple[str, ...] = ()
        try:
            is_same, answer = self._ask(step, norm, loss)
        except CannotAsk as error:
            reason = str(error)
        else:
            again = answer.norm if is_norm else answer.loss
            verdict = HeldVerdict.TRANSIENT
            if is_same:
                verdict = HeldVerdict.REPRODUCIBLE
                samples = self._find_samples(is_norm)
        self.held.append(
            HeldStep.now(
                step.iteration,
                verdict=verdict,
                quantity='grad_norm' if is_norm else 'loss',
                value=norm if is_norm else loss,
                peak=hold.norm.peak if is_norm else hold.loss.peak,
                wrapper=name,
                rank=get_rank(),
                again=again,
                samples=samples,
                reason=reason,
            )
        )
        is_fault = verdict is HeldVerdict.TRANSIENT
        return Fault.TRANSIENT if is_fault else None

    def _ask(
        self, step: PendingStep, norm: float, loss: float
    ) -> tuple[bool, Answer]:
        """Repeat a step, and once more if it was not the same."""
        iteration, asked = step.iteration, self._asked
        is_used_up = (
            len(asked) == _MOST_QUESTIONS and iteration - asked[0] < _AMONG
        )
        for is_so, why in (
            (self.is_beside, N_('the train loop is not one of mmstable')),
            (is_used_up, N_('1 % of the iterations were repeated already')),
            (
                not step.is_first,
                N_('it is not the first step of its iteration'),
            ),
            (step.dropped or step.forgotten, N_('its batches are gone')),
        ):
            if is_so:
                raise CannotAsk(_(why))
        asked.append(iteration)
        ask = partial(
            self.train_step.ask_again, iteration, step.plan.norm_type
        )
        first = ask()
        if not dist.any_rank(not _is_same(first, norm, loss)):
            return True, first
        if dist.any_rank(bool(first.changed)):
            names = sorted(set(first.changed))
            raise CannotAsk(
                _('a step changes {names} of the model', names=names)
            )
        # A model that is not deterministic gives something else every time.
        if dist.any_rank(not _is_same(ask(), first.norm, first.loss)):
            raise CannotAsk(_('it gives something else every time'))
        return False, first

    def _find_samples(self, is_norm: bool) -> tuple[str, ...]:
        """The samples of the newest batch that a high number comes from."""
        train_step, record = self.train_step, self.train_step.last
        self._named += 1
        if record is None or self._named > _MOST_NAMED or get_world_size() > 1:
            return ()

        def height(samples: list[int]) -> float:
            part = replace(record, batch=take_samples(record.batch, samples))
            (answer,) = train_step.ask_about([part], lambda: None, is_norm)
            value = answer.norm if is_norm else abs(answer.loss)
            return value if math.isfinite(value) else math.inf

        size, samples = 0, []
        try:
            size = batch_size(record.batch)
            samples = list(range(size))
            while len(samples) > 1:
                middle = len(samples) // 2
                halves = [samples[:middle], samples[middle:]]
                values = [height(half) for half in halves]
                low, high = sorted(values)
                if not high > _CLEARLY * low:
                    break
                samples = halves[values.index(high)]
        except Exception:
            # Not every model takes every part of a batch.
            pass
        if not 0 < len(samples) < max(size, 2):
            return ()
        return tuple(
            name_sample(record.batch, one) or f'{one} of the batch'
            for one in samples
        )


def _is_same(answer: Answer, norm: float, loss: float) -> bool:
    return _is_close(answer.norm, norm) and _is_close(answer.loss, loss)


def _is_close(one: float, other: float) -> bool:
    if not (math.isfinite(one) and math.isfinite(other)):
        # Without a loss, or where both are beyond all numbers.
        return math.isnan(other) or math.isfinite(one) == math.isfinite(other)
    low, high = sorted((abs(one), abs(other)))
    return high <= _SAME * low or high == low


def old_is_better(
    train_step: TrainStep,
    records: Sequence[StepRecord],
    with_gradients: bool,
    restore: Callable[[], None],
) -> bool:
    """Whether old weights are clearly better on most of some batches.

    A collective call: ranks vote on their own batches.

    Args:
        train_step (TrainStep): What to ask.
        records (Sequence[StepRecord]): The newest batches.
        with_gradients (bool): Whether it is about gradients, not losses.
        restore (Callable): Brings the old weights.

    Raises:
        CannotAsk: If nobody can know.
    """
    count = dist.least_of_ranks(len(records))
    if count == 0:
        raise CannotAsk(_('its batches are gone'))
    records = records[-count:]
    now = train_step.ask_about(records, lambda: None, with_gradients)
    old = train_step.ask_about(records, restore, with_gradients)
    better = sum(
        _is_better(before, after, with_gradients)
        for before, after in zip(old, now)
    )
    return 2 * dist.sum_of_ranks(better) > count * get_world_size()


def _is_better(old: Answer, now: Answer, with_gradients: bool) -> bool:
    are_finite = [
        math.isfinite(one.loss)
        and (math.isfinite(one.norm) or not with_gradients)
        for one in (old, now)
    ]
    if all(are_finite):
        return now.loss > 0 and old.loss * _BETTER <= now.loss
    return are_finite[0]


class BadSamples:
    """Samples of the dataset that hold NaN or Inf, found in bad steps."""

    def __init__(self) -> None:
        # Name by the index in the dataset.
        self.names: dict[int, str] = {}
        # What cannot be found in the dataset, by name only.
        self.unknown: set[str] = set()

    def note(
        self, runner: Runner, train_step: TrainStep, report: StepReport
    ) -> None:
        """Look for such samples in the batch of a bad step.

        Args:
            runner (Runner): The runner.
            train_step (TrainStep): What has run the batch.
            report (StepReport): The step.
        """
        newest = train_step.last
        if newest is None or newest.iteration != report.iteration:
            return
        try:
            found = [
                index
                for index in range(batch_size(newest.batch))
                if not all(
                    bool(torch.isfinite(one).all())
                    for one in tensors_in(take_samples(newest.batch, [index]))
                    if one.is_floating_point()
                )
            ]
        except Exception:
            # A batch of a kind that nobody can take apart.
            return
        loop: Any = runner.train_loop
        position = getattr(loop, 'position', None)
        indices: list[int] = []
        if found and isinstance(position, DataPosition):
            indices = batch_indices(loop.dataloader, position) or []
        for one in found:
            name = name_sample(newest.batch, one)
            if one < len(indices):
                self.names[indices[one]] = name
            elif name:
                self.unknown.add(name)

    def report(
        self, runner: Runner, write: Callable[[Runner, list[int]], Path]
    ) -> None:
        """Log and list the samples of all ranks. A collective call.

        Args:
            runner (Runner): The runner.
            write (Callable): Writes a skip list of some indices.
        """
        found = dict(dist.lists_of_ranks(list(self.names.items())))
        unknown = sorted(set(dist.lists_of_ranks(list(self.unknown))))
        if not is_main_process() or not (found or unknown):
            return
        shown = [name or str(index) for index, name in sorted(found.items())]
        lines = _(
            '{count:sample|samples} with NaN or Inf spoiled steps, which were '
            'skipped: {names}',
            count=len(found) + len(unknown),
            names=[*shown, *unknown][:_MOST_SAMPLES],
        )
        if found:
            lines += '. ' + _(
                'Leave them out with train_dataloader.dataset=dict('
                "type='mmstable.SkipSamples', dataset=..., "
                "skip_list='{path}')",
                path=write(runner, sorted(found)),
            )
        runner.logger.warning(f'DivergenceGuardHook: {lines}')
