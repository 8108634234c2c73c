"""The one place where a batch meets the model.

One step, station by station::

    loops/train_step.py: run              notes the batch and the generators
    optim/wrapper.py: optim_context       around the forward pass
    optim/buffers.py: before_forward      keeps running statistics
    optim/wrapper.py: backward            scales the loss
    optim/step.py: step                   measures, judges, applies or skips
    optim/grad_health.py: gradient_norms  reads every gradient once
    optim/update.py: apply                clips and updates
    events/monitor.py: add                takes the report
    events/monitor.py: after_train_iter   publishes it: the iteration is over
    hooks/divergence_guard_hook.py: after_step
    hooks/safe_param_scheduler_hook.py: after_step
    hooks/safe_param_scheduler_hook.py: after_train_iter
    hooks/safe_checkpoint_hook.py: after_train_iter
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.dist.collectives import Sharing, any_rank, find_sharing
from mmstable.messages import _
from mmstable.oom.report import is_out_of_memory
from mmstable.optim.grad_health import unwrap
from mmstable.optim.observer import before_step
from mmstable.state.rng import plain_rng, raw_rng

if TYPE_CHECKING:
    from mmstable.loops.question import Answer, Kept
    from mmstable.oom.recovery import OomRecovery


@dataclass
class StepRecord:
    """A training step, as much of it as is needed to do it again.

    Args:
        iteration (int): The iteration it belongs to, counted from 1.
        batch (Any): What the data loader gave.
        raw_rng (tuple, optional): The random generators before the forward
            pass; None unless somebody asked for them. Defaults to None.
        counts (list[int]): Backward passes that each wrapper had counted
            before. Defaults to [].
        counters (list): Numbers that modules count in, as they were before
            the step: table, name and value. Defaults to [].
        is_whole (bool): Whether the batch was run in one piece. Defaults to
            True.
        is_done (bool): Whether the step came to its end. It is not while it
            runs, and stays so if it raises an exception. Defaults to False.
        has_updated (bool): Whether an optimizer has begun to change the
            weights. Defaults to False.
        is_undone (bool): Whether it has failed, and left nothing behind but
            random numbers that were drawn. Defaults to False.
    """

    iteration: int
    batch: Any
    raw_rng: tuple | None = None
    counts: list[int] = field(default_factory=list)
    counters: list[Kept] = field(default_factory=list)
    is_whole: bool = True
    is_done: bool = False
    has_updated: bool = False
    is_undone: bool = False

    @property
    def rng(self) -> dict[str, Any] | None:
        """The generators as plain data, see :func:`capture_rng`."""
        return None if self.raw_rng is None else plain_rng(self.raw_rng)


class TrainStep:
    """Runs the training step of a model on a batch.

    Args:
        runner (Runner): The runner.
        oom (OomRecovery, optional): What to do if memory runs out.
            Defaults to None.
    """

    def __init__(self, runner: Runner, oom: OomRecovery | None = None) -> None:
        self._runner = runner
        self._oom = oom
        self._wrappers: list[Any] = []
        # It takes a copy of all generators in every iteration.
        self.keeps_rng = oom is not None
        self.last: StepRecord | None = None
        # Records of an accumulation window, if a question may need them.
        self._window: deque[StepRecord] | None = None
        # Numbers in the model, and those of them that have changed.
        self._numbers: dict[tuple[int, str], Kept] = {}
        self._counters: list[Kept] = []
        self._is_frozen = False

    def freeze(self) -> None:
        """Let no step and no update begin any more, from another thread.

        That one is going to save the state as it is, and end the process.
        """
        self._is_frozen = True

    def run(self, batch: Any, iteration: int) -> Any:
        """Train on one batch; what the model's ``train_step`` gave.

        The record of it, with the batch, is kept until the next call.

        Args:
            batch (Any): What the data loader gave.
            iteration (int): The iteration it belongs to, counted from 1.
        """
        if self._is_frozen:
            _wait_for_the_end()
        runner = self._runner
        rng = raw_rng() if self.keeps_rng else None
        counts = list(map(runner_view.inner_count, self._wrappers))
        record = self.last = StepRecord(iteration, batch, rng, counts)
        if self._counters:
            record.counters = [
                (table, name, table.get(name))
                for table, name, __ in self._counters
            ]
        if self._window is not None:
            self._window.append(record)
        oom, strategy = self._oom, None
        if oom is not None and (oom.known or oom.accumulates):
            strategy = oom.begin(batch)
            record.is_whole = strategy is None
        try:
            if oom is not None and strategy is not None:
                outputs = oom.run(strategy, batch)
            else:
                outputs = runner.model.train_step(
                    batch, optim_wrapper=runner.optim_wrapper
                )
        except Exception as error:
            if oom is None or not is_out_of_memory(error):
                raise
            failed = error
        else:
            record.is_done = True
            return outputs
        # Not inside of `except`, which keeps all activations alive.
        record.is_whole = False
        outputs = oom.retry(record, failed, strategy)
        record.is_done = True
        return outputs

    def note(self, batch: Any, iteration: int) -> None:
        """Keep the record of a step that something else is going to run.

        Args:
            batch (Any): What the data loader gave.
            iteration (int): The iteration it belongs to, counted from 1.
        """
        self.last = StepRecord(iteration, batch, raw_rng())

    def bind(self) -> None:
        """Learn the model and the wrappers of a run that begins."""
        self.last = self._window = None
        self._numbers, self._counters = {}, []
        self._wrappers = list(runner_view.wrappers(self._runner).values())
        if self._oom is not None:
            self._oom.bind()

    def expect_questions(self) -> None:
        """Keep what a question needs from the next step on."""
        self.keeps_rng = True
        (wrapper, *others) = self._wrappers
        window = runner_view.accumulative_counts(wrapper)
        if not others and window > 1:
            self._window = deque(maxlen=window)

    def find_counters(self) -> None:
        """Find the numbers that modules count in, to be called now and then.

        A model may count its steps in plain attributes: they are kept before
        each step from now on, so that a question begins with the same.
        """
        from mmstable.loops.question import counters

        now = counters(unwrap(self._runner.model))
        known = {(id(table), name) for table, name, __ in self._counters}
        self._counters += [
            kept
            for key, kept in now.items()
            if key in self._numbers
            and key not in known
            and self._numbers[key][2] != kept[2]
        ]
        self._numbers = now

    def ask_again(self, iteration: int, order: float) -> Answer:
        """Repeat the newest step before its update. A collective call.

        Args:
            iteration (int): The iteration of the step.
            order (float): The order of the norm.

        Raises:
            CannotAsk: If it cannot be repeated.
        """
        from mmstable.loops.question import ask

        wrapper, problem = self._check_askable(), ''
        kept = [self.last] if self._window is None else self._window
        records = [one for one in kept if one is not None]
        length = runner_view.accumulative_counts(wrapper)
        if (
            len(records) != length
            or records[-1].iteration != iteration
            or (records[0].counts and records[0].counts[0] % length)
        ):
            problem = _('its batches are gone')
        elif not all(one.is_whole for one in records):
            problem = _('memory is too short')

        def prepare() -> set[tuple[int, str]]:
            rewound = wrapper.rewind_buffers()
            for table, name, value in records[0].counters if records else ():
                table[name] = value
                rewound.add((id(table), name))
            return rewound

        model = self._runner.model
        return ask(
            model, wrapper, records, prepare, order=order, problem=problem
        )

    def ask_about(
        self,
        records: Sequence[StepRecord],
        restore: Callable[[], None],
        with_gradients: bool,
    ) -> list[Answer]:
        """Find the losses of some batches under other weights.

        Ranks ask about their own batches, and the same number of them.

        Args:
            records (Sequence[StepRecord]): The batches.
            restore (Callable): Brings the other weights and buffers.
            with_gradients (bool): Whether gradients are asked for, too.

        Raises:
            CannotAsk: If the model cannot run without an update.
        """
        from mmstable.loops.question import CannotAsk, ask

        wrapper = self._check_askable()

        def prepare() -> set[tuple[int, str]]:
            restore()
            return set()

        model = unwrap(self._runner.model)
        answers = [
            ask(model, wrapper, [one], prepare, with_gradients=with_gradients)
            for one in records
        ]
        if any_rank(any('batch' in one.changed for one in answers)):
            raise CannotAsk(_('a step changes its batch'))
        return answers

    def _check_askable(self) -> Any:
        from mmstable.loops.question import CannotAsk

        if len(self._wrappers) != 1:
            raise CannotAsk(_('there are several optimizer wrappers'))
        if not self.keeps_rng:
            raise CannotAsk(_('its batches are gone'))
        sharing = find_sharing(self._runner.model)
        if sharing not in (Sharing.ALONE, Sharing.REDUCED):
            raise CannotAsk(_('ranks do not hold whole gradients'))
        return self._wrappers[0]

    @contextmanager
    def watch_updates(self) -> Iterator[None]:
        """Note in the records when an optimizer begins to update."""
        ends = [
            before_step(wrapper.optimizer, self._note_update)
            for wrapper in runner_view.wrappers(self._runner).values()
        ]
        try:
            yield
        finally:
            for end in ends:
                end()

    def undo_failed(self) -> None:
        """Put back what a step has changed before it failed.

        These are the buffers that forward passes write to. If weights were
        changed as well, nothing can be done.
        """
        record = self.last
        if record is None or record.is_done or record.has_updated:
            return
        # Nobody has a copy with other wrappers: then all is well only if
        # there is nothing to save.
        undone = [
            hasattr(wrapper, 'undo_failed_iteration')
            and wrapper.undo_failed_iteration()
            for wrapper in reversed(
                runner_view.wrappers(self._runner).values()
            )
        ]
        record.is_undone = all(undone) or (
            not runner_view.saved_buffers(self._runner)
        )

    def _note_update(self, *args: Any) -> None:
        if self._is_frozen:
            _wait_for_the_end()
        if self.last is not None:
            self.last.has_updated = True


def _wait_for_the_end() -> None:
    threading.Event().wait()
