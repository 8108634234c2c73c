"""The hook that finds out why a step was bad, or has raised an error."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmengine.dist import get_rank
from mmengine.hooks.hook import DATA_BATCH
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.errors import MMStableError, add_note, is_device_lost
from mmstable.events import Event, Fault, StepReport
from mmstable.events.records import FaultExplained, Poisoned
from mmstable.hooks.step_hook import StepHook
from mmstable.io.schema import count, mapping_of, record, text
from mmstable.loops.failure import failed_step
from mmstable.loops.train_step import StepRecord
from mmstable.messages import _
from mmstable.oom.report import is_out_of_memory
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import integer, language, number
from mmstable.state.rng import raw_rng

if TYPE_CHECKING:
    from mmstable.forensics.explain import Explained
    from mmstable.forensics.replay import StepInputs

_NAME = 'FaultForensicsHook'
# The key of losses that are not finite while all gradients are.
_HARMLESS = 'loss_only'
_EXPLAINED = (Fault.NAN_LOSS, Fault.NAN_GRAD, Fault.OVERFLOW)
# Batches of an accumulation window that are kept.
_LONGEST_WINDOW = 16


@register_globally(HOOKS, 'NanForensicsHook')
class FaultForensicsHook(StepHook):
    """Name operation, line, module and samples of a NaN or an error.

    After a bad step the same batch is run again with the same weights and
    random numbers, and every operation is watched. Nothing of that is left
    behind, and until a step is bad only its batch is kept. The finding goes
    to the log and the event file, and what a replay needs to
    ``stability/faults/iter_N/``.

    A training step that raises an error is explained in the same way, in
    mmstable's loops. If it has taken the device with it, as "device-side
    assert triggered" does, the step is run on the CPU by another process,
    where the line, the value and the sample can be read. The second error of
    one sample brings a list for
    :class:`~mmstable.check.dataset.SkipSamples`.

    Args:
        max_per_fault (int): Most steps of each kind of fault to examine in a
            run. Defaults to 5.
        overflow_streak (int): So many overflows in a row are worth it; a
            single one is the loss scale finding its level. Defaults to 4.
        max_seconds (float): Most seconds for a step. Defaults to 60.0.
        max_bundle_size (float): Most MiB of what is saved to replay a step,
            for the batch and for the weights each. Larger weights are
            replaced by the newest good checkpoint. With 0 nothing is saved.
            Defaults to 1024.0.
        lang (str, optional): The language of all lines of the run, 'en' or
            'zh_cn'. Defaults to None, which means that of another hook, or
            of the environment variable ``MMSTABLE_LANG``, or English.
    """

    # After those that tell of the step, ahead of those that act.
    priority = 35
    saved = staticmethod(record(explained=mapping_of(text(64), count)))

    def __init__(
        self,
        max_per_fault: int = 5,
        overflow_streak: int = 4,
        max_seconds: float = 60.0,
        max_bundle_size: float = 1024.0,
        lang: str | None = None,
    ) -> None:
        self.lang = language(_NAME, lang)
        self._max = integer(_NAME, 'max_per_fault', max_per_fault, 0)
        self._streak = integer(_NAME, 'overflow_streak', overflow_streak)
        self._seconds = number(_NAME, 'max_seconds', max_seconds, above=0)
        self._max_size = number(
            _NAME, 'max_bundle_size', max_bundle_size, at_least=0
        )
        self._explained: Counter[str] = Counter()
        self._last_iteration = -1
        # By wrapper: applied steps when the streak began, its first
        # iteration, and its length.
        self._streaks: dict[str, tuple[int, int, int]] = {}
        self._window: deque[StepRecord] = deque(maxlen=1)
        self._keeps = False

    def before_train(self, runner: Runner) -> None:
        """Have the random state of every step kept."""
        super().before_train(runner)
        train_step = getattr(runner.train_loop, 'train_step', None)
        counts = max(
            runner_view.accumulative_counts(one)
            for one in runner_view.wrappers(runner).values()
        )
        self._window = deque(maxlen=min(counts, _LONGEST_WINDOW))
        self._last_iteration = -1
        # A safe loop keeps the newest step by itself.
        self._keeps = train_step is None or counts > 1
        if self._keeps:
            self.before_train_iter = self._keep  # type: ignore[method-assign]
        if train_step is not None:
            train_step.keeps_rng = True

    def _keep(
        self, runner: Runner, batch_idx: int, data_batch: DATA_BATCH = None
    ) -> None:
        """Keep the batch, and the generators before its forward pass."""
        self._window.append(
            StepRecord(self.monitor.iteration, data_batch, raw_rng())
        )

    def after_event(self, runner: Runner, event: Event) -> None:
        """Examine a bad step, or a state that could not be saved."""
        if isinstance(event, StepReport):
            since, length = self._count(event)
            if self._is_worth_it(event, length):
                self._examine(runner, event, since)
        elif isinstance(event, Poisoned) and self._may(Fault.POISONED):
            from mmstable.forensics.explain import explain_poison

            self._tell(runner, explain_poison(runner, event))

    def _count(self, report: StepReport) -> tuple[int, int]:
        """First iteration and length of the streak of bad steps."""
        applied = self.monitor.sources[report.wrapper].steps.tally.applied
        # An applied one counts itself.
        before, since, length = self._streaks.get(
            report.wrapper, (-1, report.iteration, 0)
        )
        if before != applied - report.applied:
            since, length = report.iteration, 0
        self._streaks[report.wrapper] = applied, since, length + 1
        return since, length + 1

    def _is_worth_it(self, report: StepReport, length: int) -> bool:
        origins = [origin.rank for origin in report.origins]
        if (
            report.fault not in _EXPLAINED
            or (report.fault is Fault.OVERFLOW and length != self._streak)
            or (origins and get_rank() not in origins)
            # Several wrappers may have met the same fault.
            or report.iteration == self._last_iteration
        ):
            return False
        if report.bad_share == 0:
            # A loss that does not reach the gradients, most likely again.
            return not self._explained[_HARMLESS] and self._max > 0
        return self._may(report.fault)

    def _may(self, fault: Fault) -> bool:
        return self._explained[fault.value] < self._max

    def _examine(self, runner: Runner, report: StepReport, since: int) -> None:
        from mmstable.forensics.explain import explain_step

        self._last_iteration = report.iteration
        records = list(self._window)
        if not self._keeps:
            last = runner.train_loop.train_step.last
            records = [] if last is None else [last]
        self._tell(
            runner,
            explain_step(runner, report, records, since, self._seconds),
            None if report.bad_share else _HARMLESS,
        )

    def _tell(
        self, runner: Runner, explained: Explained, kind: str | None = None
    ) -> None:
        event, lines, __ = explained
        self._explained[kind or event.fault.value] += 1
        event = self._save(runner, explained)
        # At once: mmengine leaves out a line that it has printed before.
        runner.logger.warning('\n'.join(lines))
        self.monitor.emit(runner, event)

    def _save(
        self, runner: Runner, explained: Explained, is_lost: bool = False
    ) -> FaultExplained:
        """Write the bundle, and add a line about it."""
        from mmstable.forensics.bundle import save_fault

        event, lines, inputs = explained
        if inputs is None or self._max_size == 0:
            return event
        rank = f'_rank_{event.rank}' if event.rank else ''
        faults = runner_view.stability_folder(runner) / 'faults'
        folder = faults / f'iter_{event.iteration}{rank}'
        saved = replace(event, bundle=str(folder))
        try:
            save_fault(runner, folder, inputs, saved, self._max_size, is_lost)
        except Exception as error:
            # A full disk must not end the run, nor a batch of strange things.
            lines.append(
                _('The bundle could not be written: {error}', error=error)
            )
            return event
        lines.append(
            _(
                'Saved in {folder}; look at it again with: mmstable replay '
                '{folder} --trust-config',
                folder=folder,
            )
        )
        return saved

    def explain_exception(
        self, runner: Runner, exception: BaseException
    ) -> None:
        """Explain an error of the training step; mmstable's loops call it."""
        record = failed_step(runner)
        if (
            record is None
            or record.has_updated
            or not self._may(Fault.CRASH)
            or is_out_of_memory(exception)
            or isinstance(exception, MMStableError)
            or not isinstance(exception, Exception)
        ):
            return
        from mmstable.forensics.explain import explain_crash

        explained = explain_crash(runner, record, exception, self._seconds)
        if explained is None:
            return
        is_lost, lines = is_device_lost(exception), explained.lines
        event = self._save(runner, explained, is_lost)
        if event.bundle is not None:
            if is_lost:
                event = self._replay_elsewhere(event, lines)
            lines += self._offer_skipping(runner, event, explained.inputs)
        text = '\n'.join(lines)
        runner.logger.error(text)
        add_note(exception, text, first=True)
        self.monitor.emit(runner, event)

    def _replay_elsewhere(
        self, event: FaultExplained, lines: list[str]
    ) -> FaultExplained:
        """Replace the text of an error by what another process has found."""
        from mmstable.forensics.bundle import read_verdict, replay_bundle

        folder = Path(event.bundle or '')
        reason = replay_bundle(folder, self._seconds)
        found = read_verdict(folder)
        if reason or found is None:
            lines.insert(
                1, _('Verdict: not examined, {reason}.', reason=reason)
            )
            return event
        lines[:1] = found.text.splitlines()
        return replace(found, rank=event.rank, bundle=event.bundle)

    def _offer_skipping(
        self,
        runner: Runner,
        event: FaultExplained,
        inputs: StepInputs | None,
    ) -> list[str]:
        """Write a skip list if a sample has raised an error before.

        Returns:
            list[str]: The line that says so, if there is one.
        """
        from mmstable.check.dataset import skip_samples
        from mmstable.forensics.bundle import VERDICT, read_verdict

        known = set(event.sample_names) - {''}
        again: set[str] = set()
        pattern = f'*/stability/faults/*/{VERDICT}'
        for path in Path(runner.work_dir).glob(pattern):
            found = read_verdict(path.parent)
            if (
                found is not None
                and found.fault is Fault.CRASH
                and path.parent != Path(event.bundle or '')
            ):
                again |= known.intersection(found.sample_names)
        positions = inputs.indices if inputs is not None else ()
        indices = [
            positions[index]
            for index, name in zip(event.samples, event.sample_names)
            if name in again and positions
        ]
        if not indices:
            return []
        path = skip_samples(
            runner.train_dataloader.dataset,
            runner_view.stability_folder(runner) / 'skip_list.json',
            indices,
            event.kind,
        )
        return [
            _(
                'This is not the first error of {names}. Leave it out with '
                "train_dataloader.dataset=dict(type='mmstable.SkipSamples', "
                "dataset=..., skip_list='{path}')",
                names=sorted(again),
                path=path,
            )
        ]

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {'explained': dict(self._explained)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._explained = Counter(state['explained'])


# The name of the time when it explained NaN only.
NanForensicsHook = FaultForensicsHook
