"""A training step that ran out of memory is done again in another way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from mmengine.runner import Runner
from torch import Tensor

from mmstable import run_view
from mmstable.batches import batch_shapes
from mmstable.errors import TrainingOutOfMemory, add_note
from mmstable.loops.oom_teller import OomCase, OomTeller, file_hint
from mmstable.loops.partial_gradients import PartialGradients
from mmstable.loops.remedies import Remedies
from mmstable.loops.retry_mode import RetryMode
from mmstable.loops.waiting_ranks import WaitingRanks
from mmstable.memory.activation_meter import ActivationMeter
from mmstable.memory.chunks import CannotChunk
from mmstable.memory.failure import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    Failure,
)
from mmstable.memory.ladder import LadderMemory, Remedy, Rung
from mmstable.memory.oom_report import PHASES, advice
from mmstable.memory.oom_settings import OomSettings
from mmstable.memory.out_of_memory import (
    empty_cache,
    is_out_of_memory,
    release,
)
from mmstable.messages import N_, _
from mmstable.run_state.rng import restore_rng

_UPDATED = N_(
    'an earlier update of the same train_step is made already; the rest of '
    'it is left out'
)


class MemoryLadder:
    """Tries ever stronger remedies for a batch that does not fit in memory.

    What the failed attempt has changed is put back before each of them. The
    one that helps is where batches of the same shapes begin from then on.

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
        self._memory = LadderMemory(settings.calm_period)
        self._tell = OomTeller(runner)
        self._skipped = 0
        self._accumulates = False
        # Whether a step has to begin with :meth:`begin`.
        self.is_alert = False
        self._shapes: tuple[str, ...] = ()

    def bind(self) -> None:
        """Learn the model and the wrappers of a run that begins."""
        runner = self._runner
        self._wrappers = list(run_view.wrappers(runner).values())
        self._accumulates = any(
            run_view.accumulative_counts(one) > 1 for one in self._wrappers
        )
        self._remedies = Remedies(runner, self._settings, self._owner)
        self._gradients = PartialGradients(runner.model.parameters())
        self._ranks = WaitingRanks(runner.model)
        self._be_alert()

    def _be_alert(self) -> None:
        self.is_alert = self._accumulates or bool(self._memory)

    def begin(self, batch: Any) -> Rung | None:
        """Where to begin with a batch; None for no remedy.

        Args:
            batch (Any): What the data loader gave.
        """
        if self._accumulates:
            self._gradients.note()
        if not self._memory:
            return None
        self._shapes = batch_shapes(batch)
        return self._memory.start(self._shapes)

    def run(self, rung: Rung | None, batch: Any) -> Any:
        """Train on a batch of a shape that is known, or may be.

        Args:
            rung (Rung, optional): What :meth:`begin` gave.
            batch (Any): What the data loader gave.
        """
        outputs = self._remedies.run(rung, batch)
        if rung is not None:
            self._note_calm(rung, batch)
        return outputs

    def survive(
        self, record: Any, error: BaseException, failed: Rung | None
    ) -> Any:
        """Do a step again that ran out of memory.

        Args:
            record (StepRecord): The step.
            error (BaseException): The error.
            failed (Rung, optional): What was tried.

        Returns:
            Any: What ``train_step`` gave; None if the batch is left out.
        """
        self._ranks.begin()
        case = self._open_case(record, error)
        why_not = self._why_not(record, case.failure)
        if why_not is not None:
            self._give_up(case, error, why_not)
        index = 0 if failed is None else case.ladder.index(failed) + 1
        if self._has_stepped(record):
            case.reasons = [_(_UPDATED)]
            index = len(case.ladder) - 1
        for rung in case.ladder[index:-1]:
            outputs, is_done = self._try(case, rung)
            if is_done:
                self._note_survival(case, rung)
                return outputs
            if self._has_stepped(record):
                case.reasons = [_(_UPDATED)]
                break
        self._leave_out(case, error)
        return None

    def _open_case(self, record: Any, error: BaseException) -> OomCase:
        device = self._remedies.device
        failure = self._look_at(error)
        case = OomCase(
            record,
            failure,
            self._tell.facts(record.batch, record.iteration),
            self._remedies.ladder(record.batch),
            ActivationMeter(device),
            list(self._remedies.modules),
            device,
            self._remedies.missing(record.batch),
        )
        self._tell.say(
            _(
                'Iter {iteration}: out of memory in the {phase} ({shapes}): '
                '{error}',
                iteration=record.iteration,
                phase=_(PHASES[failure.phase]),
                shapes=case.facts.shapes,
                error=failure.text.split('\n')[0][:300],
            )
        )
        return case

    def _look_at(self, error: BaseException) -> Failure:
        """Take what is needed from an error, and let go of the rest."""
        failure = Failure.of(error, self._remedies.device)
        self._ranks.note_failure(
            error, failure, self._gradients.changed(), self._synchronises()
        )
        release(error)
        return failure

    def _synchronises(self) -> bool:
        return any(wrapper.should_sync() for wrapper in self._wrappers)

    def _why_not(self, record: Any, failure: Failure) -> str | None:
        if failure.phase == OPTIMIZER:
            return _(
                'memory ran out while the optimizer worked, and the weights '
                'may be half updated.'
            )
        return self._ranks.why_not()

    def _has_stepped(self, record: Any) -> bool:
        """Whether a part of the step is made, and cannot be undone."""
        now = list(map(run_view.inner_count, self._wrappers))
        return record.has_updated or now != record.counts

    def _try(self, case: OomCase, rung: Rung) -> tuple[Any, bool]:
        """What a rung gave, and whether it came to its end."""
        record = case.record
        self._put_back(record)
        is_first = rung.remedy is Remedy.RETRY
        empty_cache(self._remedies.device, everything=is_first)
        self._tell.say(
            _(
                'Iter {iteration}: trying {remedy}.',
                iteration=record.iteration,
                remedy=self._remedies.describe(rung),
            )
        )
        try:
            with self._again(case):
                return self._remedies.run(rung, record.batch), True
        except CannotChunk as error:
            case.reasons.append(str(error))
            self._tell.say(
                _(
                    'Iter {iteration}: {rung} is not possible: {reason}',
                    iteration=record.iteration,
                    rung=rung,
                    reason=error,
                )
            )
            release(error)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failure = self._look_at(error)
            why_not = self._why_not(record, failure)
            if why_not is not None:
                self._give_up(case, error, why_not)
        return None, False

    @contextmanager
    def _again(self, case: OomCase) -> Iterator[None]:
        def backward(loss: Tensor, *args: Any, **kwargs: Any) -> None:
            case.meter.end_phase(FORWARD)
            self._ranks.backward(loss, *args, **kwargs)
            self._gradients.complete()
            case.meter.end_phase(BACKWARD)

        model = run_view.saved_model(self._runner)
        watch = case.meter.watch(model) if self._tell.writes else nullcontext()
        with self._ranks.undisturbed(), RetryMode(backward), watch:
            yield

    def _put_back(self, record: Any) -> None:
        """Undo what the failed attempt has changed."""
        for wrapper in reversed(self._wrappers):
            if hasattr(wrapper, 'undo_failed_iteration'):
                wrapper.undo_failed_iteration()
        if not self._ranks.have_gradients:
            self._gradients.put_back()
        if record.rng is not None:
            restore_rng(record.rng)

    def _note_survival(self, case: OomCase, rung: Rung) -> None:
        shapes = batch_shapes(case.record.batch)
        self._memory.note_remedy(shapes, rung)
        self._be_alert()
        calm = self._memory.calm_of(shapes)
        path = self._tell.write(case, self._remedies.describe(rung))
        gradients, reason = self._remedies.gradients(rung)
        self._tell.say(
            _(
                'Iter {iteration}: the batch fits now ({rung}).{next}{report}',
                iteration=case.record.iteration,
                rung=rung,
                next=''
                if calm is None
                else _(
                    ' Batches of these shapes start there from now on; after '
                    '{calm} of them something milder is tried.',
                    calm=calm,
                ),
                report=file_hint(path),
            )
        )
        self._emit(
            case, str(rung), report=path, gradients=gradients, reason=reason
        )

    def _note_calm(self, rung: Rung, batch: Any) -> None:
        calm = self._memory.calm_of(self._shapes)
        ladder = self._remedies.ladder(batch)
        self._memory.note_success(self._shapes, ladder)
        self._be_alert()
        milder = self._memory.start(self._shapes)
        if milder != rung:
            iteration = self._runner.iter + 1
            self._tell.say(
                _(
                    'Iter {iteration}: batches of these shapes have come '
                    'through with {rung} for {calm} iterations; trying '
                    '{milder} from now on.',
                    iteration=iteration,
                    rung=rung,
                    calm=calm,
                    milder=milder or _('the whole batch'),
                )
            )

    def _leave_out(self, case: OomCase, error: BaseException) -> None:
        record, facts = case.record, case.facts
        why_not = self._why_not_leave_out()
        if why_not is not None:
            self._give_up(case, error, why_not)
        self._put_back(record)
        empty_cache(self._remedies.device, everything=False)
        skip = case.ladder[-1]
        path = self._tell.write(case, self._remedies.describe(skip))
        self._skipped += 1
        names: Any = list(facts.samples) or _('unnamed')
        if self._skipped > self._settings.max_skipped:
            self._stop(case, error, names, path)
        reason = ''
        if case.reasons:
            reason = _(': {reason}', reason='; '.join(case.reasons))
        self._tell.say(
            _(
                'Iter {iteration}: the batch does not fit in memory and is '
                'left out ({count} of at most {most}){reason}. Samples: '
                '{samples}. Shapes: {shapes}.{report}',
                iteration=record.iteration,
                count=self._skipped,
                most=self._settings.max_skipped,
                reason=reason,
                samples=names,
                shapes=facts.shapes,
                report=file_hint(path),
            )
        )
        reason = '; '.join(case.reasons)
        self._emit(case, str(skip), report=path, reason=reason)
        for wrapper, count in zip(self._wrappers, record.counts):
            if run_view.inner_count(wrapper) == count:
                self._leave_out_of(wrapper)

    def _why_not_leave_out(self) -> str | None:
        many = len(self._wrappers) > 1
        return next(
            filter(
                None,
                (
                    self._ranks.why_not_leave_out(one, many)
                    for one in self._wrappers
                ),
            ),
            None,
        )

    def _leave_out_of(self, wrapper: Any) -> None:
        if hasattr(wrapper, 'leave_out_iteration'):
            is_mixed = self._gradients.are_mixed
            # The window has to go as well.
            self._gradients.spoil()
            self._ranks.leave_out(wrapper, is_mixed)
        else:
            self._gradients.complete()
            run_view.leave_out_iteration(wrapper)

    def _stop(
        self, case: OomCase, error: BaseException, names: Any, path: str | None
    ) -> None:
        text = _(
            '{count:batch has|batches have} not fit in memory, which is more '
            'than max_skipped={most}. The last one: {samples} ({shapes}). '
            'What to change, the mildest first: {advice}{report}',
            count=self._skipped,
            most=self._settings.max_skipped,
            samples=names,
            shapes=case.facts.shapes,
            advice=_numbered(advice(case.facts, case.modules)),
            report=file_hint(path),
        )
        self._emit(case, 'stop', report=path)
        raise TrainingOutOfMemory(f'mmstable: {text}') from error

    def _give_up(
        self, case: OomCase, error: BaseException, reason: str
    ) -> None:
        """End the run with the error that it came from."""
        path = self._tell.write(case, reason)
        self._emit(case, 'stop', reason=reason, report=path)
        text = _(
            'mmstable cannot do this step again: {reason}', reason=reason
        ) + file_hint(path)
        self._tell.say(text)
        add_note(error, text)
        raise error

    def _emit(self, case: OomCase, rung: str, **more: Any) -> None:
        self._tell.emit(case.failure, case.facts, rung, case.device, **more)


def _numbered(lines: Sequence[str]) -> str:
    """Several lines as one, because an error is printed as one."""
    return ' '.join(f'({n}) {line.strip()}' for n, line in enumerate(lines, 1))
