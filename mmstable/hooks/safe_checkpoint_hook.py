"""The hook that saves checkpoints which can be relied on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from mmengine.dist import (
    broadcast_object_list,
    get_world_size,
    is_main_process,
)
from mmengine.hooks import CheckpointHook
from mmengine.hooks.hook import DATA_BATCH
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.checkpoint.audit import Placeholders, placeholders_of
from mmstable.checkpoint.folders import (
    EMERGENCY,
    checkpoint_folder,
    checkpoint_folders,
    hook_arguments,
    point_to,
    warn_if_not_shared,
)
from mmstable.checkpoint.loaders import keep_own_references
from mmstable.checkpoint.manifest import Lineage, lineage_in
from mmstable.checkpoint.shards import check_sharded, is_sharded_run
from mmstable.checkpoint.signals import RESUME_FROM_NEWEST, resume_hint
from mmstable.errors import ResultNotSaved
from mmstable.events.monitor import SAVED_STATES, read_state
from mmstable.hooks.step_hook import QuietHook
from mmstable.io.lock import check_owned
from mmstable.messages import _, choose_language
from mmstable.optim.grad_health import unwrap
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import (
    did_you_mean,
    flag,
    integer,
    known_settings,
    number,
)
from mmstable.state.progress import (
    ProgressResumer,
    capture_progress,
    check_progress,
)
from mmstable.state.run_state import RunState
from mmstable.state.snapshot import Snapshot

if TYPE_CHECKING:
    from mmstable.checkpoint.writer import CheckpointWriter

_NAME = 'SafeCheckpointHook'


@register_globally(HOOKS)
class SafeCheckpointHook(CheckpointHook, QuietHook):
    """A ``CheckpointHook`` whose newest good checkpoint cannot get lost.

    A state with NaN or Inf in it is not saved, but reported as poisoned, and
    hooks learn of it by ``after_poisoned(runner, culprits)``. A checkpoint is
    written under a temporary name, checked, and gets its name when it is
    complete; only then older ones are removed. If that fails, as on a full
    disk, training continues with the older ones. A checkpoint that falls into
    a window of gradient accumulation is saved at its end.

    Next to every checkpoint there is a small file with its SHA-256. Inside
    it, below ``checkpoint['mmstable']``, are the random generators of all
    ranks and the position in the data; mmengine does not mind.

    The state is copied to host memory, unless ``DivergenceGuardHook`` takes a
    snapshot of it anyway, and written by a thread while training continues.
    The next checkpoint waits for that, and so does the end of the
    run. If the host has too little memory, training waits for the writer.
    Shards are written by all ranks at once, and training waits.

    Args:
        *args: Arguments of mmengine's ``CheckpointHook``.
        async_save (bool): Whether to write in the background. Defaults to
            True.
        max_unsaved (float): Minutes of failed saves after which a run of
            which nothing was ever saved is stopped. Defaults to 30.
        **kwargs: Arguments of mmengine's ``CheckpointHook``, by name.
    """

    interval: int
    max_keep_ckpts: int

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        SAVED_STATES[cls.__name__] = check_progress

    def __init__(
        self,
        *args: Any,
        async_save: bool = True,
        max_unsaved: float = 30.0,
        **kwargs: Any,
    ) -> None:
        from mmstable.checkpoint.content import HookStates

        super().__init__(*args, **kwargs)
        # -1 means never, and all.
        self.interval = integer(_NAME, 'interval', self.interval, -1)
        self.max_keep_ckpts = integer(
            _NAME, 'max_keep_ckpts', self.max_keep_ckpts, -1
        )
        self._max_unsaved = number(
            _NAME, 'max_unsaved', max_unsaved, at_least=0
        )
        self._is_async = flag(_NAME, 'async_save', async_save)
        self._placeholders = Placeholders()
        self._writer: CheckpointWriter
        self._reporter = _SaveReporter()
        self._hook_states = HookStates()
        self._resumer = ProgressResumer()
        # Whether a validation has swapped the weights with their average.
        self._is_averaged = False
        self._is_ready = False
        # Whether this process has added anything to what it has loaded.
        self._has_trained = False
        # The number of a checkpoint that waits for the end of a window.
        self._waiting: int | None = None
        # Of the checkpoint that was loaded.
        self._resumed: Lineage | None = None
        # Of the newest checkpoint, which may be on its way.
        self._last_iteration: int | None = None
        # Metrics that no validation gave, although they were to be compared.
        self._missing: set[str] = set()

    @property
    def last_iteration(self) -> int | None:
        """The iteration of the newest checkpoint, which may be pending."""
        return self._last_iteration

    @property
    def restored(self) -> dict[str, str]:
        """What became of 'RNG' and 'data position' of the checkpoint."""
        return self._resumer.restored

    def before_run(self, runner: Runner) -> None:
        """Look at the model before anything is loaded into it."""
        if isinstance(runner, Runner):
            choose_language(runner.hooks)
            self._placeholders = placeholders_of(unwrap(runner.model))
            self._placeholders.learn(runner_view.saved_model(runner))
        else:
            check_sharded(runner)
        self._check_arguments(runner)
        if self._is_async and self._reporter not in runner.hooks:
            runner_view.add_hook(runner, self._reporter)
        self._restore_progress(runner)

    def _check_arguments(self, runner: Runner) -> None:
        """Refuse unknown arguments, which mmengine's hook keeps."""
        known_settings(
            _NAME, self.args, sorted(hook_arguments(Runner.save_checkpoint))
        )
        if isinstance(runner, Runner) and (
            type(runner).save_checkpoint is not Runner.save_checkpoint
        ):
            runner.logger.warning(
                _(
                    'SafeCheckpointHook builds checkpoints itself: '
                    '{runner}.save_checkpoint is not called. Add your '
                    'content in `before_save_checkpoint` of a hook.',
                    runner=type(runner).__name__,
                )
            )

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Make the checkpoint fit, and give the loop its part of it."""
        from mmstable.checkpoint.resume import check_resumable, prepare_and_log

        prepare_and_log(runner, checkpoint)
        self._resumed = lineage_in(checkpoint)
        if runner_view.is_resuming(runner):
            check_resumable(runner, checkpoint)
            saved = read_state(checkpoint, type(self).__name__)
            self._hook_states.load_state_dict(runner, saved or {})
        self._resumer.load(checkpoint, type(self).__name__)
        self._restore_progress(runner)

    def before_train(self, runner: Runner) -> None:
        """Find out where to save."""
        info = runner.message_hub.runtime_info
        # mmengine would remove files here, and folders of these names, and
        # the best checkpoints of other runs.
        kept = list(info.pop('keep_ckpt_ids', ()))
        folder = checkpoint_folder(self.out_dir, runner.work_dir)
        keep_own_references(info, folder)
        super().before_train(runner)
        # Without a limit: an old one goes when a new one is there.
        self.keep_ckpt_ids = deque(kept)
        self._begin_lineage(runner)
        storage = self._writer.storage
        if is_main_process():
            storage.clear_up()
            self._tidy(kept, runner.iter)
        if storage.is_local:
            warn_if_not_shared(runner, Path(self.out_dir))
        # A resumed run has the checkpoint that it was resumed from.
        if runner.iter > 0:
            resumed = runner_view.resumed_from(runner)
            self._writer.last_good = str(resumed or info.get('last_ckpt'))
        elif is_main_process():
            self._writer.probe(runner)
        self._hook_states.begin(runner)
        self._is_ready, self._has_trained = True, False

    def _begin_lineage(self, runner: Runner) -> None:
        """Give this start its place among all starts in the folder."""
        from mmstable.checkpoint.catalog import last_start_in
        from mmstable.checkpoint.writer import CheckpointWriter

        found: list[Any] = [None]
        if is_main_process():
            before = last_start_in(checkpoint_folders(runner))
            found = [Lineage.after(before, self._resumed, runner.iter)]
        broadcast_object_list(found)
        self._writer = CheckpointWriter(
            self,
            self._placeholders,
            found[0],
            self._max_unsaved,
            free_memory=_free_memory if self._is_async else None,
        )

    def _restore_progress(self, runner: Runner) -> None:
        self._resumer.restore(runner)
        if self._resumer.has_generators:
            self.before_train_iter = self._set_generators  # type: ignore[method-assign]

    def _set_generators(
        self, runner: Runner, batch_idx: int, data_batch: DATA_BATCH = None
    ) -> None:
        """Set the generators of a run that was just resumed."""
        del self.before_train_iter
        self._resumer.set_generators(runner)

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: DATA_BATCH = None,
        outputs: dict | None = None,
    ) -> None:
        """Save if it is time and no window is open."""
        self._has_trained = True
        due = not self.by_epoch and (
            self.every_n_train_iters(runner, self.interval, self.save_begin)
            or (self.save_last and self.is_last_train_iter(runner))
        )
        done = runner.iter + 1
        if due:
            self._waiting = done
        if self._waiting is None or runner_view.window_is_open(runner, done):
            return
        step = self._waiting if self.by_epoch else done
        self._waiting = None
        runner.logger.info(
            _('Saving checkpoint at {iteration} iterations', iteration=done)
        )
        self._save_checkpoint_with_step(
            runner, step, dict(epoch=runner.epoch, iter=done)
        )

    def after_train_epoch(self, runner: Runner) -> None:
        """Save if it is time and no window is open."""
        if not self._has_to_wait(runner):
            super().after_train_epoch(runner)
        elif self.by_epoch and (
            self.every_n_epochs(runner, self.interval, self.save_begin)
            or (self.save_last and self.is_last_train_epoch(runner))
        ):
            self._waiting = runner.epoch + 1

    def after_train(self, runner: Runner) -> None:
        """Wait for the last checkpoint, and publish."""
        if self._waiting is not None:
            # Stopped early, inside the window.
            self._save_end(runner, self._waiting)
            self._waiting = None
        self._writer.settle(runner)
        if isinstance(self._writer.failure, OSError):
            # There may be room by now.
            self._save_end(runner, runner.epoch)
            self._writer.settle(runner)
        if isinstance(self._writer.failure, OSError):
            raise ResultNotSaved(
                _(
                    'training came to its end, but its last checkpoint could '
                    'not be saved: {reason}. Make room, and resume',
                    reason=self._writer.failure,
                )
            )
        super().after_train(runner)

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """Wait for the checkpoint on its way: the process may be ended."""
        self.finish_save()

    def finish_save(self) -> None:
        """Wait for the checkpoint that this rank is writing."""
        if self._is_ready:
            self._writer.wait()

    def _save_end(self, runner: Runner, epoch: int) -> None:
        step = epoch if self.by_epoch else runner.iter
        self._save_checkpoint_with_step(
            runner, step, dict(epoch=runner.epoch, iter=runner.iter)
        )

    def before_val_epoch(self, runner: Runner) -> None:
        """Note that the hooks of averages have swapped the weights."""
        self._is_averaged = True

    def after_val_epoch(
        self, runner: Runner, metrics: dict[str, float]
    ) -> None:
        """They are swapped back; save the best."""
        self._is_averaged = False
        super().after_val_epoch(runner, metrics)

    @contextmanager
    def _trained_weights(self, runner: Runner) -> Iterator[None]:
        """Let the model hold its own weights while it is saved."""
        hooks = runner_view.average_hooks(runner) if self._is_averaged else []
        for hook in hooks:
            runner_view.swap_average(hook)
        try:
            yield
        finally:
            for hook in reversed(hooks):
                runner_view.swap_average(hook)

    def forget_window(self) -> None:
        """Note that a rollback has replaced the state on its way to disk."""
        if self._is_ready and self._writer.pending is not None:
            self._writer.pending.is_superseded = True

    def save_emergency(
        self, runner: Runner, inexact: str | None = None
    ) -> str | None:
        """Save now, outside all intervals. A collective call.

        To be called between two iterations, or after one in which the
        weights were not touched.

        Args:
            runner (Runner): The runner.
            inexact (str, optional): Why a resumed run will not be exact.
                Defaults to None.

        Returns:
            str or None: The checkpoint, which may be one of this iteration
            that is there already; None if nothing could be saved.
        """
        if not self._is_ready or not self._has_trained:
            return None
        self._writer.settle(runner)
        meta = runner_view.resume_meta(runner)
        if meta['iter'] == self._last_iteration:
            return self.last_ckpt
        name = EMERGENCY.format(meta['iter'])
        kept = list(self.keep_ckpt_ids)
        point = partial(point_to, runner, self._writer.storage.path(name))
        with self._trained_weights(runner):
            self._save(runner, name, meta, kept, point, inexact)
        return self.last_ckpt if self._writer.settle(runner) else None

    def save_alone(
        self,
        runner: Runner,
        rng: Mapping[int, Any],
        inexact: str | None = None,
    ) -> str | None:
        """The same on one rank that cannot wait for the others.

        It may be any rank that has the whole state. This is no collective
        call.

        Args:
            runner (Runner): The runner.
            rng (Mapping): The random state to resume each rank with, as
                far as it is known.
            inexact (str, optional): Why a resumed run will not be exact.
                Defaults to None.

        Returns:
            str or None: The checkpoint, or None if it could not be saved.
        """
        if not self._is_ready or not self._has_trained:
            return None
        if is_sharded_run(runner):
            # The parts of others cannot be had.
            is_alone = get_world_size() == 1
            return self.save_emergency(runner) if is_alone else None
        meta = runner_view.resume_meta(runner)
        if self._writer.wait() and meta['iter'] == self._last_iteration:
            return self.last_ckpt
        state = self._capture(runner, inexact, all_ranks=False)
        state['rng'].update(rng)
        with self._trained_weights(runner):
            return self._write_alone(runner, meta, state)

    def save_snapshot(self, runner: Runner, snapshot: Snapshot) -> str | None:
        """Save a snapshot in host memory, after the device is lost.

        The run cannot be trained after this. This is no collective call.

        Args:
            runner (Runner): The runner.
            snapshot (Snapshot): Its state at an earlier iteration.

        Returns:
            str or None: The checkpoint; None if it could not be saved, or
            if one is there that is as new.
        """
        if not self._is_ready or is_sharded_run(runner):
            return None
        done = snapshot.meta['iter']
        if self._writer.wait() and done <= (self._last_iteration or 0):
            return None
        RunState(runner).restore(snapshot, on_host=True)
        return self._write_alone(runner, snapshot.meta, snapshot.progress)

    def _write_alone(
        self, runner: Runner, meta: dict[str, int], state: dict[str, Any]
    ) -> str | None:
        check_owned(look=True)
        name = EMERGENCY.format(meta['iter'])
        if not self._writer.save_alone(runner, name, meta, state):
            return None
        path = self._writer.storage.path(name)
        point_to(runner, path)
        return path

    def _capture(
        self, runner: Runner, inexact: str | None, all_ranks: bool = True
    ) -> dict[str, Any]:
        state = capture_progress(runner, all_ranks)
        state.update(self._hook_states.state_dict(runner))
        return state if inexact is None else {**state, 'inexact': inexact}

    def _save_checkpoint_with_step(
        self, runner: Any, step: int, meta: dict
    ) -> None:
        # If the one before was not saved, it is not among those to keep.
        self._writer.settle(runner)
        name = self.filename_tmpl.format(step)
        path = self._writer.storage.path(name)
        kept, outdated = [], []
        if self.max_keep_ckpts > 0:
            kept = [*(one for one in self.keep_ckpt_ids if one != step), step]
            outdated = kept[: -self.max_keep_ckpts]
            kept = kept[-self.max_keep_ckpts :]

        def clean_up() -> None:
            if point_to(runner, path):
                self._prune(outdated, kept, meta['iter'])
            else:
                # Removed with the next ones.
                self.keep_ckpt_ids.extendleft(reversed(outdated))

        snapshot = self._share_snapshot(runner, meta['iter'])
        self._save(runner, name, meta, kept, clean_up, snapshot=snapshot)

    def _save(
        self,
        runner: Runner,
        name: str,
        meta: dict,
        kept: list[int],
        then: Callable[[], object],
        inexact: str | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        """Announce a checkpoint, and save it. A collective call.

        Args:
            runner (Runner): The runner.
            name (str): The name of the file.
            meta (dict): Epochs and iterations done.
            kept (list[int]): Numbers of the checkpoints that stay.
            then (Callable): Called on the main process after it was saved.
            inexact (str, optional): Why a resumed run will not be exact.
                Defaults to None.
            snapshot (Snapshot, optional): Of this very state. Defaults to
                None.
        """
        check_owned(look=True)
        before = self.last_ckpt, list(self.keep_ckpt_ids), self._last_iteration
        self._announce(
            runner, self._writer.storage.path(name), kept, meta['iter']
        )
        self._writer.save(
            runner,
            name,
            meta,
            self._capture(runner, inexact),
            then=then,
            undo=partial(self._announce, runner, *before),
            # Hooks may use the last one after the training.
            wait=meta['iter'] >= runner.max_iters,
            snapshot=snapshot,
        )
        self._reporter.watch(self._writer)

    def _share_snapshot(
        self, runner: Runner, iteration: int
    ) -> Snapshot | None:
        """Let the guard take its snapshot now, if that is due. Collective."""
        if self._is_async and not is_sharded_run(runner):
            for hook in runner.hooks:
                if hasattr(hook, 'take_snapshot_if_due'):
                    return hook.take_snapshot_if_due(iteration)
        return None

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        """Save one for each metric that is better than ever before.

        mmengine's method removes the old best file, then writes the new one.
        This one writes first, and if that fails, the old one remains.
        """
        # A validation without training has nothing to save.
        if not self.save_best or not hasattr(self, 'file_backend'):
            return
        missing = {*self.key_indicators} - {'auto', *metrics}
        self._report_missing(runner, missing, metrics)
        if 'auto' in self.key_indicators:
            self._init_rule(self.rules, [next(iter(metrics))])
        is_updated = False
        for key, rule in zip(self.key_indicators, self.rules):
            score = metrics.get(key)
            if score is not None:
                is_updated |= self._save_if_best(runner, key, rule, score)
        if not is_updated or not self._writer.settle(runner):
            return
        # Once more, with the best score in it.
        if self.last_ckpt is not None and self._has_to_wait(runner):
            self._waiting = runner.epoch if self.by_epoch else runner.iter
        elif self.last_ckpt is not None:
            self._save_end(runner, runner.epoch)

    def _save_if_best(
        self, runner: Runner, key: str, rule: str, score: Any
    ) -> bool:
        # The best one of another metric may be on its way.
        self._writer.settle(runner)
        suffix = '' if len(self.key_indicators) == 1 else f'_{key}'
        info = runner.message_hub.runtime_info
        best = info.get(f'best_score{suffix}', self.init_value_map[rule])
        if not self.is_better_than[key](score, best):
            return False
        kind = 'epoch' if self.by_epoch else 'iter'
        step = getattr(runner, kind)
        name = f'best_{key}_{self.filename_tmpl.format(step)}'
        name = name.replace('/', '_')
        storage = self._writer.storage
        path = storage.path(name)
        # Part of the checkpoint.
        before = self._set_best(runner, suffix, (score, path))

        def replace_old() -> None:
            runner.logger.info(
                f'The best checkpoint with {score:0.4f} {key} at {step} '
                f'{kind} is saved to {name}.'
            )
            if before[1] not in (None, path):
                storage.remove(before[1])
                runner.logger.info(
                    f'The previous best checkpoint {before[1]} is removed'
                )

        self._writer.save(
            runner,
            name,
            dict(epoch=runner.epoch, iter=runner.iter),
            then=replace_old,
            undo=partial(self._set_best, runner, suffix, before),
        )
        return True

    def _set_best(
        self, runner: Runner, suffix: str, best: tuple[Any, Any]
    ) -> tuple[Any, Any]:
        """Note score and path of the best checkpoint; return the old ones."""
        hub = runner.message_hub
        old_score = hub.runtime_info.get(f'best_score{suffix}')
        if suffix:
            paths, key = self.best_ckpt_path_dict, suffix[1:]
        else:
            paths, key = vars(self), 'best_ckpt_path'
        old_path, paths[key] = paths.get(key), best[1]
        for name, value in zip(('best_score', 'best_ckpt'), best):
            if value is not None:
                hub.update_info(name + suffix, value)
            elif name + suffix in hub.runtime_info:
                hub.pop_info(name + suffix)
        return old_score, old_path

    def _report_missing(
        self, runner: Runner, missing: set[str], metrics: dict
    ) -> None:
        for name in sorted(missing - self._missing):
            text = _(
                'mmstable: `save_best` names {name}, which validation does '
                'not give; it gives {known}.{hint} Training continues '
                'without it.',
                name=name,
                known=list(metrics),
                hint=did_you_mean(name, metrics),
            )
            runner.logger.warning(text)
        self._missing |= missing

    def _has_to_wait(self, runner: Runner) -> bool:
        # A loop that restarts epochs cannot resume inside the next one.
        can_wait = not self.by_epoch or hasattr(
            runner.train_loop, 'state_dict'
        )
        return can_wait and runner_view.window_is_open(runner, runner.iter)

    def _announce(
        self,
        runner: Runner,
        path: str | None,
        kept: list[int],
        iteration: int | None,
    ) -> None:
        """Name the newest checkpoint; this is part of what is saved."""
        self.last_ckpt, self._last_iteration = path, iteration
        self.keep_ckpt_ids = deque(kept)
        runner.message_hub.update_info('last_ckpt', path)
        if self.max_keep_ckpts > 0:
            runner.message_hub.update_info('keep_ckpt_ids', kept)

    def _prune(
        self, outdated: list[int], kept: list[int], iteration: int
    ) -> None:
        for step in outdated:
            path = self._writer.storage.path(self.filename_tmpl.format(step))
            if not self._writer.storage.is_foreign(path):
                self._writer.storage.remove(path)
        self._tidy(kept, iteration + 1)

    def _tidy(self, kept: Iterable[int], before: int) -> None:
        """Remove needless checkpoints, also those that a kill has left."""
        if self.max_keep_ckpts > 0:
            names = {self.filename_tmpl.format(step) for step in kept}
            remove = self._writer.storage.remove_outdated
            remove('rolling', self.filename_tmpl, before, names)
            remove('emergency', EMERGENCY, before)


class _SaveReporter(QuietHook):
    """Reports what became of a checkpoint in the background."""

    # Ahead of RunMonitor and DivergenceGuardHook: a poisoned state is known
    # when these judge the iteration after it.
    priority = 19

    def watch(self, writer: CheckpointWriter) -> None:
        """Report after the next iterations, while a checkpoint is pending."""
        self._writer = writer
        if writer.pending is not None:
            self.after_train_iter = self._poll  # type: ignore[method-assign]

    def _poll(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: DATA_BATCH = None,
        outputs: dict | None = None,
    ) -> None:
        self._writer.poll(runner)
        if self._writer.pending is None:
            del self.after_train_iter


def _free_memory() -> int:
    from mmstable.memory.host import host_room

    return host_room().left


def resume_from_last(runner: Runner) -> str:
    """How to resume a run of which nothing newer could be saved."""
    saver = runner_view.find_hook(runner, SafeCheckpointHook)
    last = None if saver is None else saver.last_ckpt
    return resume_hint(runner, last) or _(RESUME_FROM_NEWEST)
