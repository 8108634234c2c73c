"""The hook that saves checkpoints which can be relied on."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Mapping
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
from mmstable.checkpoint.atomic_file import replace_text
from mmstable.checkpoint.best_checkpoint import RunnerStandIn, save_first
from mmstable.checkpoint.candidates import last_start_in
from mmstable.checkpoint.housekeeping import Housekeeping
from mmstable.checkpoint.lineage import Lineage
from mmstable.checkpoint.placeholders import Placeholders, placeholders_of
from mmstable.checkpoint.references import keep_own_references
from mmstable.checkpoint.saver import LABEL, CheckpointSaver, Poisoned
from mmstable.checkpoint.sharded_run import (
    find_poison_on_all,
    is_sharded_run,
    local_parts,
)
from mmstable.checkpoint.shards import SHARDS, remove_shards
from mmstable.checkpoint.storage import (
    EMERGENCY,
    CheckpointStorage,
    checkpoint_folders,
)
from mmstable.checkpoint.trained_weights import TrainedWeights
from mmstable.errors import ConfigError
from mmstable.events import records
from mmstable.legacy.checkpoints import prepare_to_resume
from mmstable.messages import say
from mmstable.messages.language import choose_language
from mmstable.optim.parameter_names import unwrap
from mmstable.optim.step_sources import monitor_of
from mmstable.registry import HOOKS, register_globally
from mmstable.run_state.optimizer_names import name_saved_states
from mmstable.run_state.progress import ProgressResumer, capture_progress
from mmstable.settings import integer

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

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # -1 means never, and all.
        self.interval = integer(_NAME, 'interval', self.interval, -1)
        self.max_keep_ckpts = integer(
            _NAME, 'max_keep_ckpts', self.max_keep_ckpts, -1
        )
        self._saver = CheckpointSaver(Placeholders())
        self._resumer = ProgressResumer()
        self._weights = TrainedWeights()
        self._place: CheckpointStorage
        self._is_ready = False
        # Whether this process has added anything to what it has loaded.
        self._has_trained = False
        # The number of a checkpoint that waits for the end of a window.
        self._waiting: int | None = None
        # Of the checkpoint that was loaded, and of this run.
        self._resumed: Lineage | None = None
        self._lineage: Lineage
        self._house: Housekeeping | None = None
        self._last_good: str | None = None
        self._last_iteration: int | None = None

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
        elif not is_sharded_run(runner):
            raise ConfigError(
                'SafeCheckpointHook saves with mmengine.runner.Runner, or '
                'with FlexibleRunner and mmstable.SafeFSDPStrategy or '
                f'mmstable.SafeFSDP2Strategy, got {type(runner).__name__} '
                'without them. Use CheckpointHook with it.'
            )
        self._resumer.restore(runner)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Make the checkpoint fit, and give the loop its part of it."""
        for note in prepare_to_resume(checkpoint):
            runner.logger.info(say('legacy.checkpoint', note=note))
        ours = checkpoint.get('mmstable', {})
        label = ours.get(LABEL)
        known = label.get('lineage') if isinstance(label, dict) else None
        self._resumed = Lineage.read(known)
        self._resumer.load(checkpoint, ours.get(type(self).__name__, {}))
        self._resumer.restore(runner)

    def before_train(self, runner: Runner) -> None:
        """Find out where to save."""
        info = runner.message_hub.runtime_info
        # mmengine would remove files here, and folders of these names.
        kept = list(info.pop('keep_ckpt_ids', ()))
        super().before_train(runner)
        self._place = CheckpointStorage(self)
        if self._place.is_local:
            self._keep_own_best(info)
        # Without a limit: an old one goes when a new one is there.
        self.keep_ckpt_ids = deque(kept)
        self._begin_lineage(runner)
        if is_main_process():
            self._place.clear_up()
            if self._house is not None:
                self._house.complete_manifests()
            self._tidy(runner.iter)
        if self.save_best and self._place.is_local:
            self._settle_best(runner)
        if not self._place.is_local:
            runner.logger.warning(
                say('checkpoint.not_local', folder=self.out_dir)
            )
        self._is_ready, self._has_trained = True, False

    def _keep_own_best(self, info: dict[str, Any]) -> None:
        """Never remove the best checkpoint of another run."""
        keep_own_references(info, self.out_dir)
        if not self.save_best:
            return
        if len(self.key_indicators) == 1:
            self.best_ckpt_path = info.get('best_ckpt')
            return
        for key in self.best_ckpt_path_dict:
            self.best_ckpt_path_dict[key] = info.get(f'best_ckpt_{key}')

    def _begin_lineage(self, runner: Runner) -> None:
        """Give this start its place among all starts in the folder."""
        found: list[Any] = [None]
        if is_main_process():
            before = last_start_in(checkpoint_folders(runner))
            found = [self._start_after(before, runner.iter)]
        broadcast_object_list(found)
        self._lineage = found[0]
        if self._place.is_local:
            self._house = Housekeeping(
                Path(self.out_dir),
                self._lineage,
                self.filename_tmpl,
                self._place.remove,
            )

    def _start_after(self, before: int, iteration: int) -> Lineage:
        # A new run that only starts from these weights is at iteration 0.
        if self._resumed is None or iteration == 0:
            return Lineage.begin(before + 1, iteration)
        number = 1 + max(before, self._resumed.number)
        return self._resumed.resume(number, iteration)

    def _settle_best(self, runner: Runner) -> None:
        """Know the best one, also if the run was killed when it was saved."""
        names = {'best_ckpt': self.key_indicators[0]}
        if len(self.key_indicators) > 1:
            names = {f'best_ckpt_{key}': key for key in self.key_indicators}
        info, hub = runner.message_hub.runtime_info, runner.message_hub
        found: list[Any] = [{}]
        if is_main_process() and self._house is not None:
            for name, key in names.items():
                begin = '' if key == 'auto' else f'{key}_'.replace('/', '_')
                found[0][name] = self._house.settle_best(
                    f'best_{begin}', info.get(name), runner.iter
                )
        broadcast_object_list(found)
        for name, best in found[0].items():
            score = name.replace('ckpt', 'score')
            if best is not None and score in best.info:
                hub.update_info(score, best.info[score])
                hub.update_info(name, best.path)
        self._keep_own_best(info)

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
        runner.logger.info(say('checkpoint.saving', iteration=done))
        self._save_checkpoint_with_step(
            runner, step, dict(epoch=runner.epoch, iter=done)
        )

    def after_train_epoch(self, runner: Runner) -> None:
        """Save if it is time and no window is open."""
        if not self._has_to_wait(runner):
            super().after_train_epoch(runner)
        elif self.by_epoch and self.every_n_epochs(
            runner, self.interval, self.save_begin
        ):
            self._waiting = runner.epoch + 1

    def after_train(self, runner: Runner) -> None:
        """Save what still waits, and publish."""
        if self._waiting is not None:
            # Stopped early, inside the window.
            step = self._waiting if self.by_epoch else runner.iter
            self._waiting = None
            self._save_checkpoint_with_step(
                runner, step, dict(epoch=runner.epoch, iter=runner.iter)
            )
        super().after_train(runner)

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
        meta = _meta(runner)
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
        self._point_to_last(runner)
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
        meta = _meta(runner)
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
            failure = self._try_to_save(
                runner, name, state, self._save_settings(meta)
            )
        if failure is not None:
            runner.logger.error(
                say('emergency.not_saved', name=name, reason=failure)
            )
            return None
        path = self._place.path(name)
        replace_text(Path(runner.work_dir, 'last_checkpoint'), path)
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
        kept, outdated = self._plan(step)
        self._announce(runner, self._place.path(name), kept)
        if not self._save_all(runner, name, meta):
            self._announce(runner, previous, list(self.keep_ckpt_ids))
        elif self._point_to_last(runner):
            self.keep_ckpt_ids = deque(kept)
            self._prune(outdated, meta['iter'])
        else:
            self.keep_ckpt_ids = deque(outdated + kept)

    def _save_all(self, runner: Runner, name: str, meta: dict) -> bool:
        saved = self._save(
            runner,
            name,
            state=capture_progress(runner),
            **self._save_settings(meta),
        )
        if saved:
            self._last_good = self._place.path(name)
            self._last_iteration = meta['iter']
        return saved

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        if not hasattr(self, 'file_backend'):
            # A validation without training has nothing to save.
            return
        with save_first(self, runner, self._save, self._remove) as stand_in:
            super()._save_best_checkpoint(stand_in, metrics)

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

    def _save(
        self,
        runner: Runner,
        name: str,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> bool:
        """Save on the main process; all ranks learn whether it worked."""
        # Reading a verdict may take an agreement of all ranks; the main
        # process alone would wait for it in vain.
        run_view.resolve_steps(runner)
        failure: list[Any] = [None]
        if is_sharded_run(runner):
            failure = [self._save_shards(runner, name, state or {}, kwargs)]
        elif is_main_process():
            failure = [self._try_to_save(runner, name, state or {}, kwargs)]
        broadcast_object_list(failure)
        if failure[0] is None:
            return True
        if not isinstance(failure[0], (Poisoned, OSError)):
            # On all ranks: the others must not be left waiting.
            raise failure[0]
        self._report(runner, name, failure[0])
        return False

    def _save_shards(
        self, runner: Runner, name: str, state: dict, kwargs: dict
    ) -> Exception | None:
        """Save the parts of all ranks, then what names them."""
        if not self._place.is_local:
            return ConfigError(
                'SafeCheckpointHook saves shards to a local or shared disk '
                f'only, not to {self.out_dir}.'
            )
        path = Path(self._place.path(name))
        parts, groups = local_parts(runner, kwargs['save_optimizer'])
        poison = find_poison_on_all(parts)
        if poison:
            return Poisoned(poison)
        from mmstable.checkpoint.shard_files import new_folder, write_shards

        folder = new_folder(path)
        record, failure = write_shards(parts, folder)
        if not is_main_process():
            return None
        if failure is None:
            failure = self._try_to_save(
                runner, name, state, {**kwargs, 'groups': groups}, record
            )
        if failure is None:
            remove_shards(path, but=folder.name)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        return failure

    def _try_to_save(
        self,
        runner: Runner,
        name: str,
        state: dict,
        kwargs: dict,
        shards: dict | None = None,
    ) -> Exception | None:
        known = self._saver.placeholders.counts
        extra = {
            type(self).__name__: {'placeholders': known, **state},
            LABEL: {
                'kind': self._kind(name),
                'lineage': self._lineage.as_dict(),
            },
            **({} if shards is None else {SHARDS: shards}),
        }
        try:
            self._place.save(self._saver, runner, name, extra, **kwargs)
        except Poisoned as error:
            return Poisoned(name_saved_states(error.culprits, runner))
        except Exception as error:
            return error
        return None

    def _kind(self, name: str) -> str:
        if name.startswith(EMERGENCY.partition('{')[0]):
            return 'emergency'
        if name.startswith('best_'):
            return 'best'
        return 'rolling' if self.max_keep_ckpts > 0 else 'kept'

    def _report(self, runner: Runner, name: str, failure: Exception) -> None:
        facts = {'name': name, 'reason': failure, 'last_good': ''}
        if self._last_good is not None:
            facts['last_good'] = say(
                'checkpoint.last_good', path=self._last_good
            )
        if isinstance(failure, Poisoned):
            if is_main_process():
                runner.logger.error(say('checkpoint.poisoned', **facts))
            event = records.Poisoned.now(
                runner.iter + 1, culprits=tuple(failure.culprits)
            )
            monitor_of(runner).emit(runner, event)
        elif is_main_process():
            runner.logger.warning(say('checkpoint.not_saved', **facts))

    def _plan(self, step: int) -> tuple[list[int], list[int]]:
        """Which checkpoints to keep with this one, and which not."""
        if self.max_keep_ckpts <= 0:
            return [], []
        steps = [one for one in self.keep_ckpt_ids if one != step]
        steps.append(step)
        return steps[-self.max_keep_ckpts :], steps[: -self.max_keep_ckpts]

    def _point_to_last(self, runner: Runner) -> bool:
        """Write the file that mmengine resumes by; False if that fails."""
        if not is_main_process():
            return True
        try:
            replace_text(
                Path(runner.work_dir, 'last_checkpoint'), str(self.last_ckpt)
            )
        except OSError as error:
            runner.logger.warning(
                say('checkpoint.pointer', path=self.last_ckpt, error=error)
            )
            return False
        return True

    def _prune(self, outdated: list[int], iteration: int) -> None:
        for step in outdated:
            path = self._place.path(self.filename_tmpl.format(step))
            if self._house is None or not self._house.is_foreign(Path(path)):
                self._remove(path)
        if is_main_process():
            self._tidy(iteration + 1)

    def _tidy(self, before: int) -> None:
        """Remove what is needless, also what a kill has left."""
        if self._house is not None and self.max_keep_ckpts > 0:
            kept = {self.filename_tmpl.format(k) for k in self.keep_ckpt_ids}
            self._house.remove_outdated(kept, before)
            self._house.remove_emergencies(EMERGENCY, before)

    def _remove(self, path: str) -> None:
        if is_main_process():
            self._place.remove(path)


def _meta(runner: Runner) -> dict[str, int]:
    """What a checkpoint that is saved now says of itself."""
    loop = runner.train_loop
    if hasattr(loop, 'resume_meta'):
        return loop.resume_meta()
    # While the model trains, this is after an iteration that the loop does
    # not count yet.
    done = runner.iter + runner.model.training
    return dict(epoch=runner.epoch, iter=done)
