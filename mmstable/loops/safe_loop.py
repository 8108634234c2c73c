"""What both train loops have in common: exact resume, and exceptions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any, Callable

from mmengine.dataset import InfiniteSampler
from mmengine.runner import BaseLoop

from mmstable import run_view
from mmstable.errors import CheckpointError, MMStableError, add_note
from mmstable.loops.batch_checks import check_steps
from mmstable.loops.doubts import data_doubts, sampler_numbers
from mmstable.loops.failure_text import explain_failure
from mmstable.loops.memory_ladder import MemoryLadder
from mmstable.loops.pass_rng import (
    capture_pass_rng,
    own_states,
    restore_pass_rng,
)
from mmstable.loops.reread_batches import reread
from mmstable.loops.skip_batches import (
    can_skip,
    infinite_indices,
    iterate_from,
)
from mmstable.loops.train_step import TrainStep
from mmstable.loops.validation_mark import ValidationMark
from mmstable.memory.oom_settings import OomSettings
from mmstable.messages import _, choose_language
from mmstable.optim.step_sources import monitor_of
from mmstable.run_state.data_position import (
    DataPosition,
    DataSignature,
    carry_over,
    check_position,
    sampler_of,
)
from mmstable.run_state.rng import (
    capture_rng,
    plain_rng,
    raw_rng,
    restore_rng,
)
from mmstable.run_state.workers import (
    drawing_no_seed,
    forget_workers,
    seed_workers,
    worker_seed,
    workers_persist,
)
from mmstable.settings import flag


class SafeLoop(BaseLoop):
    """A train loop that resumes where a checkpoint was saved.

    A resumed run needs :meth:`load_state_dict` and :meth:`resume_rng`, in any
    order, in the stage ``before_train`` at the latest. Without them it
    resumes as well as the iteration number allows.

    Args:
        replay (bool): Read the past batches of a started epoch again instead
            of moving the sampler. This repeats the random numbers of workers
            too, so that workers start anew with every pass. Defaults to
            False.
        oom (dict, optional): What to do when memory runs out, see
            :class:`~mmstable.memory.oom_settings.OomSettings`. Defaults to
            None.
    """

    dataloader: Any
    val_begin: int
    val_interval: int
    stop_training: bool
    _epoch: int
    _iter: int

    def __init__(
        self,
        *args: Any,
        replay: bool = False,
        oom: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        owner = type(self).__name__
        flag(owner, 'replay', replay)
        settings = OomSettings.parse(owner, oom)
        super().__init__(*args, **kwargs)
        self._replay = replay
        ladder = None
        if settings.enabled:
            ladder = MemoryLadder(self.runner, settings, owner)
        self.train_step = TrainStep(self.runner, ladder)
        self._position = DataPosition()
        self._mark = ValidationMark(self._note_validated)
        self._saved: dict[str, Any] | None = None
        self._saved_rng: dict[str, Any] | None = None
        # Where the first pass starts, if that is not where it is opened.
        self._first_pass_rng: dict[str, Any] | None = None
        self._pass_rng: dict[str, Any] | None = None
        # While a validation has no result: a resumed run does it again.
        self._rng_before_validation: dict[str, Any] | None = None
        self._sampler_numbers: dict[str, Any] = {}

    def run(self) -> Any:
        """Train; tell all hooks of an exception before it leaves."""
        choose_language(self.runner.hooks)
        check_steps(self.runner)
        self.train_step.bind()
        monitor_of(self.runner)
        # Those of an earlier run are somewhere else in the data.
        forget_workers(self.dataloader)
        try:
            with self.train_step.watch_updates():
                return self._run()
        except (Exception, KeyboardInterrupt) as error:
            self.train_step.undo_failed()
            self._explain(error)
            better = self._tell(error)
            if better is not None:
                raise better from error
            raise

    @property
    def position(self) -> DataPosition:
        """Where in the data it is, after the newest training step."""
        return self._position

    def state_dict(self) -> dict[str, Any]:
        """Where in the data this run is, in plain types.

        An iteration counts as soon as its training step is done, so this is
        right in every stage.
        """
        return {
            **asdict(DataSignature.of(self.dataloader)),
            **asdict(self._position),
            'iteration': self._iterations_done(),
            'validated': self._mark.validated,
            'worker_seed': worker_seed(self.dataloader),
            'samplers': self._sampler_numbers,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where ``state`` says, after the stage ``before_train``.

        It is ignored if the run is not at that iteration then, as when a
        checkpoint only gives the weights to start from.
        """
        try:
            self._saved = check_position(state)
        except ValueError as error:
            raise CheckpointError(
                _('no run saves this: {reason}', reason=error)
            ) from error

    def resume_doubts(self, state: dict[str, Any]) -> list[str]:
        """Why data may differ if training resumes there; empty if exact."""
        return data_doubts(self.dataloader, self._replay, state)

    def rng_state(self) -> dict[str, Any]:
        """The random state to resume with, of this rank.

        It is exact between two iterations only. While a validation runs it
        is that from before.
        """
        known = self._rng_before_validation or self._saved_rng
        return known or self._with_start(capture_rng())

    def keep_rng(self) -> Callable[[], dict[str, Any]]:
        """Keep the random state after an iteration, and give it if asked.

        As it is asked for after a failure only, most of the work is put off.
        """
        raw, start = raw_rng(), self._with_start({})['pass_start']
        is_new = 'torch' not in start

        def give() -> dict[str, Any]:
            now = plain_rng(raw)
            return {**now, 'pass_start': {**now, **start} if is_new else start}

        return give

    def _with_start(self, now: dict[str, Any]) -> dict[str, Any]:
        """Add what the pass over the data started from."""
        start = self._pass_rng
        if self._position.index == 0 or start is None:
            start = {**now, **own_states(self.dataloader)}
        return {**now, 'pass_start': start}

    def resume_rng(self, state: dict[str, Any]) -> None:
        """Take this random state right before the first batch is drawn.

        Args:
            state (dict): What :meth:`rng_state` or
                :func:`~mmstable.run_state.rng.capture_rng` gave.
        """
        self._saved_rng = state

    @abstractmethod
    def resume_meta(self) -> dict[str, int]:
        """What ``meta`` of a checkpoint saved now has to say."""

    @abstractmethod
    def _run(self) -> Any:
        """Train."""

    def _iterations_done(self) -> int:
        """Iterations whose training step is done, as in any stage."""
        last = self.train_step.last
        is_ahead = last and last.is_done and last.iteration > self._iter
        return self._iter + bool(is_ahead)

    def _explain(self, error: BaseException) -> None:
        """Say what helps, now for the log and again after the traceback."""
        if isinstance(error, (MMStableError, KeyboardInterrupt)):
            return
        text = explain_failure(self.runner, error)
        if text is not None:
            self.runner.logger.error(text)
            add_note(error, text)

    def _tell(self, error: BaseException) -> MMStableError | None:
        """Tell all hooks; one may know a better name for what happened."""
        better = None
        # The second is for what must not delay a checkpoint of the first.
        for stage in ('on_exception', 'after_exception'):
            better = self._call_stage(stage, better or error) or better
        return better

    def _call_stage(
        self, stage: str, error: BaseException
    ) -> MMStableError | None:
        better = None
        # Not by `call_hook`: the failure of one hook would silence others.
        for hook in self.runner.hooks:
            if not hasattr(hook, stage):
                continue
            try:
                getattr(hook, stage)(self.runner, exception=better or error)
            except MMStableError as named:
                better = named
            except Exception:
                name = type(hook).__name__
                self.runner.logger.exception(
                    _(
                        '{hook}.on_exception failed; the error that it was '
                        'called for follows.',
                        hook=name,
                    )
                )
        return better

    def _claim_saved(self) -> dict[str, Any] | None:
        """The loaded state, if it belongs to where the run is."""
        saved, self._saved = self._saved, None
        if saved is not None and saved['iteration'] != self._iter:
            saved = self._saved_rng = None
        if saved is not None:
            self._mark.validated = saved['validated']
        self._resume_sampler(saved)
        if saved is not None:
            seed_workers(self.dataloader, saved['worker_seed'])
        return saved

    def _resume_sampler(self, saved: dict[str, Any] | None) -> None:
        sampler = sampler_of(self.dataloader)
        if saved is not None and saved['sampler'] == type(sampler).__name__:
            seed, now = saved['seed'], getattr(sampler, 'seed', None)
            if seed is not None and seed != now:
                self.runner.logger.info(
                    _(
                        'The seed of the sampler is {seed} again, not '
                        '{configured}.',
                        seed=seed,
                        configured=now,
                    )
                )
                sampler.seed = seed
        if self._iter > 0 and isinstance(sampler, InfiniteSampler):
            # If the loader was used before, it would continue from there.
            sampler.indices = infinite_indices(sampler, 0)

    def _position_of(
        self, saved: dict[str, Any], length: int | None
    ) -> DataPosition:
        before = DataSignature.from_state(saved)
        position = DataPosition(saved['epoch'], saved['index'])
        now = DataSignature.of(self.dataloader)
        changes = before.changes(now)
        if not changes:
            return position
        position = carry_over(
            position, saved['iteration'], before, now, length
        )
        self.runner.logger.warning(
            _(
                'The data is not as it was when the checkpoint was saved: '
                '{changes}. Training resumes after the same number of '
                'samples, at batch {batch} of epoch {epoch} of the data.',
                changes=changes,
                batch=position.index,
                epoch=position.epoch,
            )
        )
        return position

    def _open_pass(self, skip: int) -> Iterator[Any]:
        """Start a pass over the data after its first batches."""
        rng, self._saved_rng = self._saved_rng, None
        first, self._first_pass_rng = self._first_pass_rng, None
        start = (rng or {}).get('pass_start')
        if skip == 0:
            start = start or rng
        is_first = rng is None and first is not None
        if is_first:
            start = first
        outside = rng or capture_rng()
        if start is not None:
            restore_pass_rng(self.dataloader, start)
        self._pass_rng = capture_pass_rng(self.dataloader)
        self._sampler_numbers = sampler_numbers(self.dataloader)
        if self._replay:
            forget_workers(self.dataloader)
        is_late = self._position.epoch > 0 and not self._replay
        with self._starting_workers(self.dataloader, is_late):
            batches = self._skip(skip) if skip else iter(self.dataloader)
        if skip or is_first:
            restore_rng(outside)
        return batches

    def _starting_workers(
        self, dataloader: Any, is_late: bool
    ) -> AbstractContextManager[None]:
        """Draw the seed of workers only if an unbroken run would do so now.

        Args:
            dataloader (Any): The loader.
            is_late (bool): Whether an unbroken run would have used it before.
        """
        if is_late and workers_persist(dataloader):
            return drawing_no_seed(dataloader)
        return nullcontext()

    def _skip(self, skip: int) -> Iterator[Any]:
        if can_skip(self.dataloader) and not self._replay:
            self.runner.logger.info(
                _(
                    'Resuming at batch {batch} of the data, without reading '
                    'those before it.',
                    batch=skip,
                )
            )
            return iterate_from(self.dataloader, skip)
        batches = iter(self.dataloader)
        reread(batches, skip)
        return batches

    def _validate(self, count: int, total: int) -> None:
        """Validate if it is time."""
        if not (
            self.runner.val_loop is not None
            and count >= self.val_begin
            and (count % self.val_interval == 0 or count == total)
        ):
            return
        # Running statistics of a bad step are restored with its verdict.
        run_view.resolve_steps(self.runner)
        self._rng_before_validation = self.rng_state()
        if self._saved_rng is not None:
            # A resumed run: the validation sees what it saw before.
            restore_rng(self._saved_rng)
        is_late = self._mark.validated >= 0
        self._mark.watch(self.runner, count)
        loader = getattr(self.runner.val_loop, 'dataloader', None)
        with self._starting_workers(loader, is_late):
            self.runner.val_loop.run()
        self._note_validated()

    def _note_validated(self) -> None:
        """Let checkpoints resume after the validation."""
        self._rng_before_validation = None
        saved = self._saved_rng
        if saved is None:
            return
        now = capture_rng()
        start = saved.get('pass_start', now)
        if self._position.index == 0:
            # The next pass has not started, so it starts from here.
            start = {**start, **now}
        self._saved_rng = {**now, 'pass_start': start}
