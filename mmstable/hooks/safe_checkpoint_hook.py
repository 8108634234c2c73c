"""The hook that saves checkpoints which can be relied on."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from mmengine.dist import (
    broadcast_object_list,
    get_world_size,
    is_main_process,
)
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from mmstable import run_view
from mmstable.checkpoint.best_checkpoint import RunnerStandIn, save_first
from mmstable.checkpoint.best_references import keep_own_best, settle_best
from mmstable.checkpoint.candidates import last_start_in
from mmstable.checkpoint.collective_save import NOT_SAVED, CollectiveSave
from mmstable.checkpoint.fit import check_resumable
from mmstable.checkpoint.hook_arguments import hook_arguments
from mmstable.checkpoint.housekeeping import Housekeeping, split_outdated
from mmstable.checkpoint.lineage import Lineage
from mmstable.checkpoint.placeholders import Placeholders, placeholders_of
from mmstable.checkpoint.saver import LABEL, CheckpointSaver
from mmstable.checkpoint.sharded_run import check_sharded, is_sharded_run
from mmstable.checkpoint.storage import (
    EMERGENCY,
    CheckpointStorage,
    checkpoint_folders,
    point_to,
)
from mmstable.checkpoint.trained_weights import TrainedWeights
from mmstable.errors import ResultNotSaved
from mmstable.events.stateful_hook import SAVED_STATES
from mmstable.legacy.checkpoints import prepare_to_resume
from mmstable.messages import _, choose_language
from mmstable.optim.parameter_names import unwrap
from mmstable.registry import HOOKS, register_globally
from mmstable.run_state.progress import (
    ProgressResumer,
    capture_progress,
    check_progress,
)
from mmstable.settings import did_you_mean, integer, known_settings

_NAME = 'SafeCheckpointHook'


@register_globally(HOOKS)
class SafeCheckpointHook(CheckpointHook):
    """A ``CheckpointHook`` whose newest good checkpoint cannot get lost.

    A state with NaN or Inf in it is not saved, but reported as poisoned, and
    hooks are told by ``after_poisoned(runner, culprits)``. A checkpoint is
    written under a temporary name, checked, and gets its name when it is
    complete; only then older ones are removed. If that fails, as on a full
    disk, training continues with the older ones. A checkpoint that falls into
    a window of gradient accumulation is saved at its end.

    Next to every checkpoint there is a small file with its SHA-256. Inside
    it, below ``checkpoint['mmstable']``, are the random generators of all
    ranks and the position in the data; mmengine does not mind.

    On other than local disks mmengine writes in its own way.

    Args:
        *args: Arguments of mmengine's ``CheckpointHook``.
        **kwargs: The same, by name.
    """

    interval: int
    max_keep_ckpts: int

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        SAVED_STATES[cls.__name__] = check_progress

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # -1 means never, and all.
        self.interval = integer(_NAME, 'interval', self.interval, -1)
        self.max_keep_ckpts = integer(
            _NAME, 'max_keep_ckpts', self.max_keep_ckpts, -1
        )
        self._saver = CheckpointSaver(Placeholders())
        self._saving: CollectiveSave
        self._resumer = ProgressResumer()
        self._weights = TrainedWeights()
        self._place: CheckpointStorage
        self._is_ready = False
        # Whether this process has added anything to what it has loaded.
        self._has_trained = False
        # The number of a checkpoint that waits for the end of a window.
        self._waiting: int | None = None
        # Of the checkpoint that was loaded.
        self._resumed: Lineage | None = None
        self._house: Housekeeping | None = None
        self._last_iteration: int | None = None
        # Why there is no checkpoint of the time that was last due.
        self._failure: Exception | None = None
        # Metrics that no validation gave, although they were to be compared.
        self._missing: set[str] = set()

    @property
    def restored(self) -> dict[str, str]:
        """What became of 'RNG' and 'data position' of the checkpoint."""
        return self._resumer.restored

    def before_run(self, runner: Runner) -> None:
        """Look at the model before anything is loaded into it."""
        if isinstance(runner, Runner):
            choose_language(runner.hooks)
            placeholders = placeholders_of(unwrap(runner.model))
            placeholders.learn(run_view.saved_model(runner))
            self._saver = CheckpointSaver(placeholders)
        else:
            check_sharded(runner)
        self._check_arguments(runner)
        self._resumer.restore(runner)

    def _check_arguments(self, runner: Runner) -> None:
        """Refuse what the runner would at the first checkpoint only."""
        taken = signature(runner.save_checkpoint).parameters
        if all(one.kind is not one.VAR_KEYWORD for one in taken.values()):
            known = hook_arguments(runner.save_checkpoint)
            known_settings(_NAME, self.args, sorted(known))

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Make the checkpoint fit, and give the loop its part of it."""
        for note in prepare_to_resume(checkpoint):
            runner.logger.info(_('mmstable: checkpoint: {note}.', note=note))
        ours = checkpoint.get('mmstable', {})
        label = ours.get(LABEL)
        known = label.get('lineage') if isinstance(label, dict) else None
        self._resumed = Lineage.read(known)
        if run_view.is_resuming(runner):
            check_resumable(runner, checkpoint)
        self._resumer.load(checkpoint, type(self).__name__)
        self._resumer.restore(runner)

    def before_train(self, runner: Runner) -> None:
        """Find out where to save."""
        info = runner.message_hub.runtime_info
        # mmengine would remove files here, and folders of these names.
        kept = list(info.pop('keep_ckpt_ids', ()))
        super().before_train(runner)
        self._place = CheckpointStorage(self)
        if self._place.is_local:
            keep_own_best(self, info)
        # Without a limit: an old one goes when a new one is there.
        self.keep_ckpt_ids = deque(kept)
        self._begin_lineage(runner)
        if is_main_process():
            self._place.clear_up()
            if self._house is not None:
                self._house.complete_manifests()
            self._tidy(runner.iter)
        if self.save_best and self._place.is_local:
            settle_best(self, runner, self._house)
        if not self._place.is_local:
            runner.logger.warning(
                _(
                    'SafeCheckpointHook: {folder} is not on a local disk. '
                    'Checkpoints are audited, but written as mmengine does: '
                    'one that is cut off has the name of a complete one.',
                    folder=self.out_dir,
                )
            )
        self._is_ready, self._has_trained = True, False

    def _begin_lineage(self, runner: Runner) -> None:
        """Give this start its place among all starts in the folder."""
        found: list[Any] = [None]
        if is_main_process():
            before = last_start_in(checkpoint_folders(runner))
            found = [Lineage.after(before, self._resumed, runner.iter)]
        broadcast_object_list(found)
        lineage = found[0]
        self._saving = CollectiveSave(self, self._saver, self._place, lineage)
        if self._place.is_local:
            self._house = Housekeeping(
                Path(self.out_dir),
                lineage,
                self.filename_tmpl,
                self._place.remove,
            )

    def before_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
    ) -> None:
        """Set the generators of a run that was just resumed."""
        self._resumer.before_train_iter(runner)

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
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
        if self._waiting is None or run_view.window_is_open(runner, done):
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
        """Save what still waits, and publish."""
        if self._waiting is not None:
            # Stopped early, inside the window.
            self._save_end(runner, self._waiting)
            self._waiting = None
        if isinstance(self._failure, OSError):
            # There may be room by now.
            self._save_end(runner, runner.epoch)
        if isinstance(self._failure, OSError):
            raise ResultNotSaved(
                _(
                    'training came to its end, but its last checkpoint could '
                    'not be saved: {reason}. Make room, and resume',
                    reason=self._failure,
                )
            )
        super().after_train(runner)

    def _save_end(self, runner: Runner, epoch: int) -> None:
        step = epoch if self.by_epoch else runner.iter
        self._save_checkpoint_with_step(
            runner, step, dict(epoch=runner.epoch, iter=runner.iter)
        )

    def before_val(self, runner: Runner) -> None:
        """Remember the weights before they are swapped with others."""
        self._weights.before_val(runner)

    def after_val(self, runner: Runner) -> None:
        """They are there again."""
        self._weights.after_val()

    def save_emergency(self, runner: Runner) -> str | None:
        """Save now, outside all intervals. A collective call.

        To be called between two iterations, or after one in which the
        weights were not touched.

        Returns:
            str or None: The checkpoint, which may be one of this iteration
            that is there already; None if nothing could be saved.
        """
        meta = run_view.resume_meta(runner)
        if not self._is_ready or not self._has_trained:
            return None
        if meta['iter'] == self._last_iteration:
            return self.last_ckpt
        name = EMERGENCY.format(meta['iter'])
        previous, kept = self.last_ckpt, list(self.keep_ckpt_ids)
        self._announce(runner, self._place.path(name), kept)
        with self._weights.in_place(runner):
            is_saved = self._save_all(runner, name, meta)
        if not is_saved:
            self._announce(runner, previous, kept)
            return None
        if is_main_process():
            point_to(runner, self.last_ckpt)
        return self.last_ckpt

    def save_alone(self, runner: Runner, rng: Mapping[int, Any]) -> str | None:
        """The same on one rank that cannot wait for the others.

        It may be any rank that has the whole state. This is no collective
        call.

        Args:
            runner (Runner): The runner.
            rng (Mapping): The random state to resume each rank with, as
                far as it is known.

        Returns:
            str or None: The checkpoint, or None if it could not be saved.
        """
        meta = run_view.resume_meta(runner)
        if not self._is_ready or not self._has_trained:
            return None
        if is_sharded_run(runner):
            # The parts of others cannot be had.
            is_alone = get_world_size() == 1
            return self.save_emergency(runner) if is_alone else None
        if meta['iter'] == self._last_iteration:
            return self.last_ckpt
        name = EMERGENCY.format(meta['iter'])
        state = capture_progress(runner, all_ranks=False)
        state['rng'].update(rng)
        with self._weights.in_place(runner):
            failure = self._saving.save_here(
                runner, name, state, self._save_settings(meta)
            )
        if failure is not None:
            runner.logger.error(
                _(
                    NOT_SAVED,
                    name=name,
                    reason=failure,
                    last_good='',
                )
            )
            return None
        path = self._place.path(name)
        point_to(runner, path)
        return path

    def _save_settings(self, meta: dict) -> dict[str, Any]:
        return dict(
            save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler,
            meta=meta,
            by_epoch=self.by_epoch,
            **self.args,
        )

    def _save_checkpoint_with_step(
        self, runner: Any, step: int, meta: dict
    ) -> None:
        if isinstance(runner, RunnerStandIn):
            # Once more, with the best score in it.
            runner = runner.runner
            if self._has_to_wait(runner):
                self._waiting = step
                return
        name, previous = self.filename_tmpl.format(step), self.last_ckpt
        kept, outdated = split_outdated(
            self.keep_ckpt_ids, step, self.max_keep_ckpts
        )
        self._announce(runner, self._place.path(name), kept)
        if not self._save_all(runner, name, meta):
            self._announce(runner, previous, list(self.keep_ckpt_ids))
        elif not is_main_process() or point_to(runner, self.last_ckpt):
            self.keep_ckpt_ids = deque(kept)
            self._prune(outdated, meta['iter'])
        else:
            self.keep_ckpt_ids = deque(outdated + kept)

    def _save_all(self, runner: Runner, name: str, meta: dict) -> bool:
        saved = self._saving.save(
            runner,
            name,
            state=capture_progress(runner),
            **self._save_settings(meta),
        )
        self._failure = self._saving.failure
        if saved:
            self._saving.last_good = self._place.path(name)
            self._last_iteration = meta['iter']
        return saved

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        if not hasattr(self, 'file_backend'):
            # A validation without training has nothing to save.
            return
        # There are none unless `save_best` is set.
        wanted = getattr(self, 'key_indicators', ())
        missing = {*wanted} - {'auto', *metrics}
        self._tell_missing(runner, missing, metrics)
        with save_first(
            self, runner, self._saving.save, self._place.remove
        ) as stand_in:
            # mmengine compares nothing with None.
            scores = {**metrics, **dict.fromkeys(sorted(missing))}
            super()._save_best_checkpoint(stand_in, scores)

    def _tell_missing(
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
        # A loop that starts epochs anew cannot resume inside the next one.
        can_wait = not self.by_epoch or hasattr(
            runner.train_loop, 'state_dict'
        )
        return can_wait and run_view.window_is_open(runner, runner.iter)

    def _announce(
        self, runner: Runner, path: str | None, kept: list[int]
    ) -> None:
        """Say what is last; this is part of what is saved."""
        self.last_ckpt = path
        runner.message_hub.update_info('last_ckpt', path)
        if self.max_keep_ckpts > 0:
            runner.message_hub.update_info('keep_ckpt_ids', kept)

    def _prune(self, outdated: list[int], iteration: int) -> None:
        for step in outdated:
            path = self._place.path(self.filename_tmpl.format(step))
            if self._house is None or not self._house.is_foreign(Path(path)):
                self._place.remove(path)
        if is_main_process():
            self._tidy(iteration + 1)

    def _tidy(self, before: int) -> None:
        """Remove what is needless, also what a kill has left."""
        if self._house is not None and self.max_keep_ckpts > 0:
            kept = {self.filename_tmpl.format(k) for k in self.keep_ckpt_ids}
            self._house.remove_outdated(kept, before)
            self._house.remove_emergencies(EMERGENCY, before)
