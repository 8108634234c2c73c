"""Retry a training step that ran out of memory with less memory."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Callable, NoReturn

from mmengine.runner import Runner
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mmstable import runner_view
from mmstable.batch import batch_shapes
from mmstable.errors import TrainingOutOfMemory, add_note
from mmstable.events.monitor import StatefulHook
from mmstable.io.schema import integer, list_of, record, text
from mmstable.messages import N_, _
from mmstable.oom.ranks import DdpRetry, PartialGradients
from mmstable.oom.recompute import CannotChunk
from mmstable.oom.report import (
    MOST_FILES,
    OPTIMIZER,
    PHASES,
    OomReport,
    empty_cache,
    failed_phase,
    file_hint,
    is_out_of_memory,
    release,
)
from mmstable.oom.strategies import (
    RETRY,
    Known,
    OomSettings,
    OomStrategies,
    OomStrategy,
)
from mmstable.state.rng import restore_rng


class BackwardInterceptor(TorchFunctionMode):
    """Calls a function in place of ``loss.backward()``.

    Args:
        backward (Callable): The function, with the arguments of
            ``Tensor.backward``.
    """

    def __init__(self, backward: Callable[..., None]) -> None:
        super().__init__()
        self._backward = backward

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.backward:
            func = self._backward
        return func(*args, **(kwargs or {}))


_UPDATED = N_(
    'an earlier update of the same train_step is made already; the rest of '
    'it is left out'
)


_NEED = record(
    shapes=list_of(text(256), 256),
    name=text(32),
    parts=integer(1, 1 << 20),
    calm=integer(1, 1 << 31),
)


class OomMemory(StatefulHook):
    """Keeps the strategies that batches need, over a resume.

    Args:
        recovery (OomRecovery): Whose they are.
    """

    saved = staticmethod(record(known=list_of(_NEED, 4096)))

    def __init__(self, recovery: OomRecovery) -> None:
        self._recovery = recovery

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run has to know."""
        found = [
            dict(shapes=list(shapes), calm=one.calm, **vars(one.strategy))
            for shapes, one in self._recovery.known.items()
        ]
        return {'known': found} if found else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._recovery.known = {
            tuple(one['shapes']): Known(
                OomStrategy(one['name'], one['parts']), one['calm']
            )
            for one in state['known']
        }


class OomRecovery:
    """Tries ever stronger strategies for a batch that does not fit.

    The changes of the failed attempt are undone before each of them. Batches
    of the same shapes start with the one that worked from then on.

    Args:
        runner (Runner): The runner.
        settings (OomSettings): What is allowed.
        owner (str): Whose settings they are.
    """

    def __init__(
        self, runner: Runner, settings: OomSettings, owner: str
    ) -> None:
        self._runner = runner
        self._settings = settings
        self._owner = owner
        self._files = self._skipped = 0
        # Whether a step has to begin with :meth:`begin`, if none is known.
        self.accumulates = False
        self._shapes: tuple[str, ...] = ()
        # By the shapes of batches.
        self.known: dict[tuple[str, ...], Known] = {}

    def bind(self) -> None:
        """Take the model and the wrappers of a run that begins."""
        runner = self._runner
        self._wrappers = list(runner_view.wrappers(runner).values())
        self.accumulates = any(
            runner_view.accumulative_counts(one) > 1 for one in self._wrappers
        )
        self._strategies = OomStrategies(
            runner, self._settings, self._owner, self.known
        )
        self._gradients = PartialGradients(runner.model.parameters())
        self._ranks = DdpRetry(runner.model)

    def begin(self, batch: Any) -> OomStrategy | None:
        """Return the strategy to start with; None for the plain step.

        Args:
            batch (Any): What the data loader gave.
        """
        if self.accumulates:
            self._gradients.note()
        if not self.known:
            return None
        self._shapes = batch_shapes(batch)
        known = self.known.get(self._shapes)
        return None if known is None else known.strategy

    def run(self, strategy: OomStrategy, batch: Any) -> Any:
        """Train on a batch with the strategy that fitted before.

        Args:
            strategy (OomStrategy): What :meth:`begin` gave.
            batch (Any): What the data loader gave.
        """
        modules = self._strategies.modules
        outputs = strategy.run(self._runner, batch, modules)
        calm = self.known[self._shapes].calm
        self._strategies.note_success(self._shapes, batch)
        now = self.known.get(self._shapes)
        if now is None or now.strategy != strategy:
            text = _(
                'Iter {iteration}: batches of these shapes have come '
                'through with {rung} for {calm} iterations; trying '
                '{milder} from now on.',
                iteration=self._runner.iter + 1,
                rung=strategy,
                calm=calm,
                milder=now.strategy if now else _('the whole batch'),
            )
            self._runner.logger.warning(f'mmstable: {text}')
        return outputs

    def retry(
        self, record: Any, error: BaseException, failed: OomStrategy | None
    ) -> Any:
        """Retry a step that ran out of memory.

        Args:
            record (StepRecord): The step.
            error (BaseException): The error.
            failed (OomStrategy, optional): The strategy that failed.

        Returns:
            Any: What ``train_step`` gave; None if the batch is left out.
        """
        self._ranks.begin()
        report = OomReport(self._runner, error, record.batch, record.iteration)
        report.modules = list(self._strategies.modules)
        report.reasons = self._strategies.missing(record.batch)
        report.log(
            _(
                'Iter {iteration}: out of memory in the {phase} ({shapes}): '
                '{error}',
                iteration=record.iteration,
                phase=_(PHASES[report.phase]),
                shapes=report.shapes,
                error=report.text.split('\n')[0][:300],
            )
        )
        self._free(report, error)
        strategies = self._strategies.of(record.batch)
        # Another config may not have the strategy of a resumed run.
        start = strategies.index(failed) + 1 if failed in strategies else 0
        for strategy in strategies[start:-1]:
            if self._has_stepped(record):
                break
            outputs, is_done = self._try(report, record, strategy)
            if is_done:
                self._note_survival(report, record, strategy)
                return outputs
        if self._has_stepped(record):
            report.reasons = [_(_UPDATED)]
        self._leave_out(report, record, strategies[-1], error)
        return None

    def _free(self, report: OomReport, error: BaseException) -> None:
        """Free the memory of a failed attempt; end the run if it must end."""
        phase = failed_phase(error)
        synchronises = any(one.should_sync() for one in self._wrappers)
        self._ranks.note_failure(
            error, phase, self._gradients.changed(), synchronises
        )
        release(error)
        reason = self._ranks.why_not()
        if phase == OPTIMIZER:
            reason = _(
                'memory ran out while the optimizer worked, and the weights '
                'may be half updated.'
            )
        if reason is not None:
            self._give_up(report, error, reason)

    def _has_stepped(self, record: Any) -> bool:
        """Whether a part of the step is made, and cannot be undone."""
        now = list(map(runner_view.inner_count, self._wrappers))
        return record.has_updated or now != record.counts

    def _try(
        self, report: OomReport, record: Any, strategy: OomStrategy
    ) -> tuple[Any, bool]:
        """Return the outputs, and whether the step came to its end."""
        self._undo(record)
        is_first = strategy.name == RETRY
        empty_cache(report.device, everything=is_first)
        report.log(
            _(
                'Iter {iteration}: trying {remedy}.',
                iteration=record.iteration,
                remedy=self._strategies.describe(strategy),
            )
        )
        watch: AbstractContextManager = nullcontext()
        if self._files < MOST_FILES:
            watch = report.measuring()
        modules = self._strategies.modules
        try:
            with (
                self._ranks.undisturbed(),
                BackwardInterceptor(self._backward),
                watch,
            ):
                return strategy.run(self._runner, record.batch, modules), True
        except CannotChunk as error:
            report.reasons.append(str(error))
            report.log(
                _(
                    'Iter {iteration}: {rung} is not possible: {reason}',
                    iteration=record.iteration,
                    rung=strategy,
                    reason=error,
                )
            )
            release(error)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._free(report, error)
        return None, False

    def _backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        self._ranks.backward(loss, *args, **kwargs)
        self._gradients.complete()

    def _undo(self, record: Any) -> None:
        """Undo the changes of the failed attempt."""
        for wrapper in reversed(self._wrappers):
            if hasattr(wrapper, 'undo_failed_iteration'):
                wrapper.undo_failed_iteration()
        if not self._ranks.have_gradients:
            self._gradients.put_back()
        if record.rng is not None:
            restore_rng(record.rng)

    def _write(self, report: OomReport, done: str) -> str | None:
        """Write the report of one of the first errors of a run."""
        self._files += 1
        return report.write(done) if self._files <= MOST_FILES else None

    def _note_survival(
        self, report: OomReport, record: Any, strategy: OomStrategy
    ) -> None:
        strategies = self._strategies
        shapes = batch_shapes(record.batch)
        strategies.note_remedy(shapes, strategy)
        known, note = self.known.get(shapes), ''
        if known is not None:
            note = _(
                ' Batches of these shapes start there from now on; after '
                '{calm} of them something milder is tried.',
                calm=known.calm,
            )
        path = self._write(report, strategies.describe(strategy))
        report.log(
            _(
                'Iter {iteration}: the batch fits now ({rung}).{next}{report}',
                iteration=record.iteration,
                rung=strategy,
                next=note,
                report=file_hint(path),
            )
        )
        gradients, reason = strategies.gradients(strategy)
        report.emit(
            str(strategy), report=path, gradients=gradients, reason=reason
        )

    def _leave_out(
        self,
        report: OomReport,
        record: Any,
        skip: OomStrategy,
        error: BaseException,
    ) -> None:
        for wrapper in self._wrappers:
            why_not = self._ranks.why_not_leave_out(
                wrapper, len(self._wrappers) > 1
            )
            if why_not is not None:
                self._give_up(report, error, why_not)
        self._undo(record)
        empty_cache(report.device, everything=False)
        path = self._write(report, self._strategies.describe(skip))
        self._skipped += 1
        if self._skipped > self._settings.max_skipped:
            self._stop(report, error, path)
        reason = '; '.join(report.reasons)
        report.log(
            _(
                'Iter {iteration}: the batch does not fit in memory and is '
                'left out ({count} of at most {most}){reason}. Samples: '
                '{samples}. Shapes: {shapes}.{report}',
                iteration=record.iteration,
                count=self._skipped,
                most=self._settings.max_skipped,
                reason=_(': {reason}', reason=reason) if reason else '',
                samples=report.samples or _('unnamed'),
                shapes=report.shapes,
                report=file_hint(path),
            )
        )
        report.emit(str(skip), report=path, reason=reason)
        for wrapper, count in zip(self._wrappers, record.counts):
            if runner_view.inner_count(wrapper) != count:
                continue
            if hasattr(wrapper, 'skip_iteration'):
                is_mixed = self._gradients.are_mixed
                # The window has to go as well.
                self._gradients.spoil()
                self._ranks.leave_out(wrapper, is_mixed)
            else:
                self._gradients.complete()
                runner_view.skip_iteration(wrapper)

    def _stop(
        self, report: OomReport, error: BaseException, path: str | None
    ) -> NoReturn:
        # In one line, because an error is printed as one.
        advice = ' '.join(
            f'({n}) {line.strip()}'
            for n, line in enumerate(report.advice(), 1)
        )
        text = _(
            '{count:batch has|batches have} not fit in memory, which is more '
            'than max_skipped={most}. The last one: {samples} ({shapes}). '
            'What to change, the mildest first: {advice}{report}',
            count=self._skipped,
            most=self._settings.max_skipped,
            samples=report.samples or _('unnamed'),
            shapes=report.shapes,
            advice=advice,
            report=file_hint(path),
        )
        report.emit('stop', report=path)
        raise TrainingOutOfMemory(f'mmstable: {text}') from error

    def _give_up(
        self, report: OomReport, error: BaseException, reason: str
    ) -> NoReturn:
        """End the run with the error that it came from."""
        path = self._write(report, reason)
        report.emit('stop', reason=reason, report=path)
        text = _(
            'mmstable cannot do this step again: {reason}', reason=reason
        ) + file_hint(path)
        report.log(text)
        add_note(error, text)
        raise error
