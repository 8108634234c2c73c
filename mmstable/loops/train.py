"""Train loops that resume exactly, and call hooks when they fail."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any, Callable, cast

from mmengine.dataset import InfiniteSampler
from mmengine.hooks import Hook
from mmengine.runner import (
    BaseLoop,
    EpochBasedTrainLoop,
    IterBasedTrainLoop,
    Runner,
)
from torch import nn
from torch.utils.data import DataLoader

from mmstable import runner_view
from mmstable.errors import CheckpointError
from mmstable.loops.checks import check_batch_size, check_data, check_steps
from mmstable.loops.failure import Phase, end_run
from mmstable.loops.train_step import TrainStep
from mmstable.messages import _, choose_language
from mmstable.oom.strategies import OomSettings
from mmstable.optim.observer import monitor_of
from mmstable.registry import LOOPS, register_globally
from mmstable.settings import flag
from mmstable.state import data_position as data
from mmstable.state.data_position import (
    DataPosition,
    DataSignature,
    EndlessBatches,
)
from mmstable.state.rng import (
    capture_epoch_rng,
    capture_rng,
    own_states,
    plain_rng,
    raw_rng,
    restore_epoch_rng,
    restore_rng,
)


class ValidationMark(Hook):
    """Calls a function when a validation has come to a result.

    A checkpoint saved because of that result must not ask for the same
    validation again, so this runs before all other hooks.

    Args:
        on_result (Callable): The function.
    """

    priority = 'HIGHEST'

    def __init__(self, on_result: Callable[[], None]) -> None:
        self._on_result = on_result

    def after_val_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Call it."""
        self._on_result()


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
            :class:`~mmstable.oom.strategies.OomSettings`. Defaults to
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
        recovery = None
        if settings.enabled:
            from mmstable.oom.recovery import OomMemory, OomRecovery

            recovery = OomRecovery(self.runner, settings, owner)
            self.runner.register_hook(OomMemory(recovery))
        self.train_step = TrainStep(self.runner, recovery)
        self._position = DataPosition()
        # After the newest batch, whether its step is done or not.
        self.drawn = self._position
        self.phase = Phase.DATA
        # Finished iterations or epochs at the newest validation: that has a
        # result, and that runs.
        self._validated = self._validating = -1
        self._mark = ValidationMark(self._note_result)
        self._saved: dict[str, Any] | None = None
        self._saved_rng: dict[str, Any] | None = None
        # Where the first pass starts, if that is not where it is opened.
        self._first_pass_rng: dict[str, Any] | None = None
        self._pass_rng: dict[str, Any] | None = None
        # While a validation has no result: a resumed run does it again.
        self._rng_before_validation: dict[str, Any] | None = None
        self._sampler_numbers: dict[str, Any] = {}
        # Set by hooks that save after a failure.
        self.keeps_rng = False
        # After the newest iteration: its number, the generators of the rank,
        # and where the pass over the data started from.
        self._kept: tuple[int, Any, dict[str, Any]] | None = None

    def run(self) -> Any:
        """Train; tell all hooks of an exception before it leaves."""
        choose_language(self.runner.hooks)
        check_steps(self.runner)
        self.train_step.bind()
        monitor_of(self.runner)
        # Those of an earlier run are somewhere else in the data.
        data.forget_workers(self.dataloader)
        try:
            with self.train_step.watch_updates():
                return self._run()
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            better = end_run(self, error)
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
            'validated': self._validated,
            'worker_seed': data.worker_seed(self.dataloader),
            'samplers': self._sampler_numbers,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where ``state`` says, after the stage ``before_train``.

        It is ignored if the run is not at that iteration then, as when a
        checkpoint only gives the weights to start from.
        """
        try:
            self._saved = data.check_position(state)
        except ValueError as error:
            raise CheckpointError(
                _('no run saves this: {reason}', reason=error)
            ) from error

    def resume_warnings(self, state: dict[str, Any]) -> list[str]:
        """Why data may differ if training resumes there; empty if exact."""
        return data.data_warnings(self.dataloader, self._replay, state)

    def rng_state(self) -> dict[str, Any]:
        """The random state to resume with, of this rank.

        It is exact between two iterations only. While a validation runs it
        is that from before.
        """
        known = self._rng_before_validation or self._saved_rng
        if known is not None:
            return known
        now = capture_rng()
        return {**now, 'pass_start': {**now, **self._start_of_pass()}}

    def _start_of_pass(self) -> dict[str, Any]:
        """The generators that started the pass over the data.

        Without those of the rank, it starts from where they are.
        """
        if self._position.index == 0 or self._pass_rng is None:
            return own_states(self.dataloader)
        return self._pass_rng

    def kept_rng(self) -> tuple[int, dict[str, Any] | None]:
        """The newest iteration and the random state after it.

        The next iteration draws random numbers before it fails, so this is
        the state to resume a failed run with: (-1, None) unless
        ``keeps_rng`` is set.
        """
        if self._kept is None:
            return -1, None
        iteration, raw, start = self._kept
        now = plain_rng(raw)
        return iteration, {**now, 'pass_start': {**now, **start}}

    def _keep_rng(self) -> None:
        """Read the generators; a failure converts what was read."""
        self._kept = self._iter, raw_rng(), self._start_of_pass()

    def resume_rng(self, state: dict[str, Any]) -> None:
        """Take this random state right before the first batch is drawn.

        Args:
            state (dict): What :meth:`rng_state` or
                :func:`~mmstable.state.rng.capture_rng` gave.
        """
        self._saved_rng = state

    @abstractmethod
    def resume_meta(self) -> dict[str, int]:
        """What ``meta`` of a checkpoint saved now has to say."""

    @abstractmethod
    def _run(self) -> Any:
        """Train."""

    def _train_on(
        self, batch: Any, batch_idx: int, position: DataPosition
    ) -> None:
        """Run one iteration.

        Args:
            batch (Any): What the data loader gave.
            batch_idx (int): Its number, for hooks.
            position (DataPosition): The position in the data after it.
        """
        stage = {'batch_idx': batch_idx, 'data_batch': batch}
        self.phase, self.drawn = Phase.BEFORE_STEP, position
        self.runner.call_hook('before_train_iter', **stage)
        self.phase = Phase.STEP
        outputs = self.train_step.run(batch, self._iter + 1)
        self.phase, self._position = Phase.AFTER_STEP, position
        self.runner.call_hook('after_train_iter', **stage, outputs=outputs)
        self._iter += 1
        if self.keeps_rng:
            self._keep_rng()
        self.phase = Phase.DATA

    def _iterations_done(self) -> int:
        """Iterations whose training step is done, as in any stage."""
        last = self.train_step.last
        is_ahead = last and last.is_done and last.iteration > self._iter
        return self._iter + bool(is_ahead)

    def _claim_saved(self) -> dict[str, Any] | None:
        """The loaded state, if it belongs to where the run is."""
        saved, self._saved = self._saved, None
        if saved is not None and saved['iteration'] != self._iter:
            saved = self._saved_rng = None
        self._resume_sampler(saved)
        if saved is not None:
            self._validated = saved['validated']
            data.seed_workers(self.dataloader, saved['worker_seed'])
        return saved

    def _resume_sampler(self, saved: dict[str, Any] | None) -> None:
        sampler = data.sampler_of(self.dataloader)
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
            sampler.indices = data.infinite_indices(sampler, 0)

    def _position_of(
        self, saved: dict[str, Any], length: int | None
    ) -> DataPosition:
        before = DataSignature.from_state(saved)
        position = DataPosition(saved['epoch'], saved['index'])
        now = DataSignature.of(self.dataloader)
        changes = before.changes(now)
        if not changes:
            return position
        position = data.carry_over(
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
        is_first = rng is None and first is not None
        start = first
        if rng is not None:
            start = rng.get('pass_start') or (None if skip else rng)
        outside = rng or capture_rng()
        if start is not None:
            restore_epoch_rng(self.dataloader, start)
        self._pass_rng = capture_epoch_rng(self.dataloader)
        self._sampler_numbers = data.sampler_numbers(self.dataloader)
        if self._replay:
            data.forget_workers(self.dataloader)
        is_late = self._position.epoch > 0 and not self._replay
        with _starting_workers(self.dataloader, is_late):
            batches = self._skip(skip) if skip else iter(self.dataloader)
        if skip or is_first:
            restore_rng(outside)
        return batches

    def _skip(self, skip: int) -> Iterator[Any]:
        if data.can_skip(self.dataloader) and not self._replay:
            self.runner.logger.info(
                _(
                    'Resuming at batch {batch} of the data, without reading '
                    'those before it.',
                    batch=skip,
                )
            )
            return data.iterate_from(self.dataloader, skip)
        batches = iter(self.dataloader)
        data.reread(batches, skip)
        return batches

    def _validate(self, count: int, total: int) -> None:
        """Validate if it is time.

        Args:
            count (int): Finished iterations or epochs.
            total (int): Those of the whole run.
        """
        self._decide_current_val_interval()  # type: ignore[attr-defined]
        if not (
            self.runner.val_loop is not None
            and count >= max(self.val_begin, 1)
            and (count % self.val_interval == 0 or count == total)
        ):
            return
        # Running statistics of a bad step are restored with its verdict.
        runner_view.resolve_steps(self.runner)
        self._rng_before_validation = self.rng_state()
        if self._saved_rng is not None:
            # A resumed run: the validation sees what it saw before.
            restore_rng(self._saved_rng)
        is_late = self._validated >= 0
        self._validating = count
        if self._mark not in self.runner.hooks:
            self.runner.register_hook(self._mark)
        loader = getattr(self.runner.val_loop, 'dataloader', None)
        self.phase = Phase.VALIDATION
        with _starting_workers(loader, is_late):
            self.runner.val_loop.run()
        self._note_validated()
        self.phase = Phase.DATA

    def _note_result(self) -> None:
        self._validated = self._validating
        self._note_validated()

    def _note_validated(self) -> None:
        """Let checkpoints resume after the validation."""
        self.phase = Phase.AFTER_VALIDATION
        self._rng_before_validation = None
        if self._kept is not None and self._kept[0] == self._iter:
            self._keep_rng()
        saved = self._saved_rng
        if saved is None:
            return
        now = capture_rng()
        start = saved.get('pass_start', now)
        if self._position.index == 0:
            # The next pass has not started, so it starts from here.
            start = {**start, **now}
        self._saved_rng = {**now, 'pass_start': start}


def _starting_workers(
    dataloader: Any, is_late: bool
) -> AbstractContextManager[None]:
    """Draw the seed of workers only if an unbroken run would do so now.

    Args:
        dataloader (Any): The loader.
        is_late (bool): Whether an unbroken run would have used it before.
    """
    if is_late and data.workers_persist(dataloader):
        return data.drawing_no_seed(dataloader)
    return nullcontext()


class _NoData:
    """A loader to build mmengine's loop with, which reads from it at once."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(())


@register_globally(LOOPS)
class SafeIterBasedTrainLoop(SafeLoop, IterBasedTrainLoop):
    """``IterBasedTrainLoop`` that resumes fast and exactly.

    The sampler is moved to where the checkpoint was saved, instead of reading
    all past data again. Reading starts when training does, not before.
    Before an exception leaves, hooks are called by ``on_exception``.

    Args:
        runner (Runner): The runner.
        dataloader (DataLoader or dict): The training data.
        replay (bool): Read past batches of the pass over the data again, to
            repeat the random numbers of workers as well. Defaults to False.
        oom (dict, optional): What to do when memory runs out, see
            :class:`~mmstable.oom.strategies.OomSettings`. Defaults to
            None.
        **kwargs: ``max_iters`` and all else of ``IterBasedTrainLoop``.
    """

    _batches: EndlessBatches | None

    def __init__(
        self,
        runner: Runner,
        dataloader: DataLoader | dict,
        replay: bool = False,
        **kwargs: Any,
    ) -> None:
        check_batch_size(dataloader)
        BaseLoop.__init__(self, runner, dataloader)
        check_data(self.dataloader)
        loader = self.dataloader
        super().__init__(
            runner, _NoData(loader.dataset), replay=replay, **kwargs
        )
        self.dataloader = loader
        self._batches = None
        # mmengine starts to read now, before weights are initialized, which
        # draws a seed; ours starts later, with the same one.
        self._first_pass_rng = capture_epoch_rng(loader)
        data.draw_worker_seed(loader)

    @property
    def dataloader_iterator(self) -> EndlessBatches:
        """The batches from here on; reading starts when it is asked for.

        It is for loops derived from this one that have a ``run`` of their
        own.
        """
        if self._batches is None:
            self._open(self._find_position(self._claim_saved()))
        return cast(EndlessBatches, self._batches)

    @dataloader_iterator.setter
    def dataloader_iterator(self, batches: EndlessBatches | None) -> None:
        self._batches = batches

    def resume_meta(self) -> dict[str, int]:
        """What ``meta`` of a checkpoint saved now has to say."""
        return {'epoch': self._epoch, 'iter': self._iterations_done()}

    def run_iter(self, data_batch: Any) -> None:
        """Train on one batch."""
        position = self._batches.position if self._batches else self._position
        self._train_on(data_batch, self._iter, position)

    def _run(self) -> nn.Module:
        self.runner.call_hook('before_train')
        saved = self._claim_saved()
        position = self._find_position(saved)
        self._position = position or self._position
        self.runner.call_hook('before_train_epoch')
        if saved is not None and self._validated != self._iter:
            self._validate(self._iter, self._max_iters)
        batches: EndlessBatches | None = None
        while self._iter < self._max_iters and not self.stop_training:
            batches = batches or self._open(position)
            self.runner.model.train()
            self.run_iter(next(batches))
            self._validate(self._iter, self._max_iters)
        # Lets workers go, which an endless sampler would keep for ever.
        batches = self._batches = None
        self.phase = Phase.AFTER_STEP
        self.runner.call_hook('after_train_epoch')
        self.runner.call_hook('after_train')
        return self.runner.model

    def _find_position(
        self, saved: dict[str, Any] | None
    ) -> DataPosition | None:
        if saved is None:
            return data.position_of_iteration(self.dataloader, self._iter)
        return self._position_of(saved, data.pass_length(self.dataloader))

    def _open(self, position: DataPosition | None) -> EndlessBatches:
        if position == DataPosition() or (
            position and data.can_skip(self.dataloader)
        ):
            batches = EndlessBatches(
                self.dataloader, self._open_pass, position
            )
        else:
            batches = self._reread_all(position)
        self._position = batches.position
        self._batches = batches
        return batches

    def _reread_all(self, position: DataPosition | None) -> EndlessBatches:
        """Read everything again: nobody knows what the order depends on."""
        rng, self._saved_rng = self._saved_rng, None
        after = rng or capture_rng()
        count = self._iter
        if position is not None and position.epoch == 0:
            count = position.index
            if rng is not None and 'pass_start' in rng:
                restore_epoch_rng(self.dataloader, rng['pass_start'])
        batches = EndlessBatches(
            self.dataloader, self._open_pass, DataPosition()
        )
        data.reread(batches, count)
        restore_rng(after)
        return batches


@register_globally(LOOPS)
class SafeEpochBasedTrainLoop(SafeLoop, EpochBasedTrainLoop):
    """``EpochBasedTrainLoop`` that resumes exactly, inside an epoch too.

    A checkpoint saved in the middle of an epoch resumes with the batch after
    it. Before an exception leaves, hooks are called by ``on_exception``.

    Args:
        runner (Runner): The runner.
        dataloader (DataLoader or dict): The training data.
        replay (bool): Read past batches of the epoch again, to repeat the
            random numbers of workers as well. Defaults to False.
        oom (dict, optional): What to do when memory runs out, see
            :class:`~mmstable.oom.strategies.OomSettings`. Defaults to
            None.
        **kwargs: ``max_epochs`` and all else of ``EpochBasedTrainLoop``.
    """

    _max_iters: int

    def __init__(
        self,
        runner: Runner,
        dataloader: DataLoader | dict,
        replay: bool = False,
        **kwargs: Any,
    ) -> None:
        check_batch_size(dataloader)
        super().__init__(runner, dataloader, replay=replay, **kwargs)
        check_data(self.dataloader)
        self._skip_batches = 0

    def resume_meta(self) -> dict[str, int]:
        """What ``meta`` of a checkpoint saved now has to say."""
        return {
            'epoch': self._position.epoch,
            'iter': self._iterations_done(),
        }

    def run_epoch(self) -> None:
        """Train one epoch, or what is left of it."""
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        skip, self._skip_batches = self._skip_batches, 0
        for idx, data_batch in enumerate(self._open_pass(skip), skip):
            self.run_iter(idx, data_batch)
        self._position = DataPosition(self._epoch + 1)
        self.phase = Phase.AFTER_STEP
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1

    def run_iter(self, idx: int, data_batch: Any) -> None:
        """Train on one batch."""
        position = DataPosition(self._epoch, idx + 1)
        self._train_on(data_batch, idx, position)

    def _run(self) -> nn.Module:
        # Hooks begin to count where the run is, whatever a resume changed.
        saved = self._claim_position()
        self.runner.call_hook('before_train')
        if saved is None or self._saved is not None:
            saved = self._claim_position()
        if (
            saved is not None
            and self._position.index == 0
            and self._validated != self._epoch
        ):
            self._validate(self._epoch, self._max_epochs)
        while self._epoch < self._max_epochs and not self.stop_training:
            self.run_epoch()
            self._validate(self._epoch, self._max_epochs)
        self.runner.call_hook('after_train')
        return self.runner.model

    def _claim_position(self) -> dict[str, Any] | None:
        saved = self._claim_saved()
        if self._iter > 0:
            self._position = self._find_position(saved)
            self._epoch = epoch = self._position.epoch
            self._skip_batches = skip = self._position.index
            left = (self._max_epochs - epoch) * len(self.dataloader) - skip
            self._end_at(self._iter + left)
        return saved

    def _find_position(self, saved: dict[str, Any] | None) -> DataPosition:
        length = len(self.dataloader)
        if saved is not None:
            return self._position_of(saved, length)
        index = self._iter - self._epoch * length
        return DataPosition(self._epoch, index if 0 <= index <= length else 0)

    def _end_at(self, last: int) -> None:
        """Let the run end there, if an epoch has another length now.

        The number of the iteration stays, as with mmengine: averages and
        schedules that begin at some iteration have begun.
        """
        if last == self._max_iters:
            return
        self.runner.logger.info(
            _(
                'An epoch has {length} iterations now: training continues '
                'after iteration {iteration}, and ends with iteration {last}.',
                length=len(self.dataloader),
                iteration=self._iter,
                last=last,
            )
        )
        self._max_iters = last
        self.runner.optim_wrapper.initialize_count_status(
            self.runner.model, self._iter, self._max_iters
        )
