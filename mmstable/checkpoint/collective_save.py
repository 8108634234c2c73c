"""Save one checkpoint, and let all ranks know what became of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from mmstable import run_view
from mmstable.checkpoint.lineage import Lineage
from mmstable.checkpoint.saver import LABEL, CheckpointSaver, Poisoned
from mmstable.checkpoint.sharded_run import is_sharded_run
from mmstable.checkpoint.sharded_save import save_shards
from mmstable.checkpoint.shards import SHARDS
from mmstable.checkpoint.storage import CheckpointStorage, kind_of
from mmstable.errors import ConfigError
from mmstable.events import records
from mmstable.events.machine_records import CheckpointFailed
from mmstable.messages import N_, _
from mmstable.optim.step_sources import monitor_of
from mmstable.run_state.optimizer_names import name_saved_states

NOT_SAVED = N_('mmstable: {name} is not saved: {reason}.{last_good}')


class CollectiveSave:
    """Saves on the main process, or the part of each rank of a sharded run.

    What cannot be saved, because it is poisoned or because the disk fails,
    is reported, and the run goes on. Any other error is raised on all ranks.

    Args:
        hook (CheckpointHook): Whose checkpoints these are.
        saver (CheckpointSaver): Writes a file.
        storage (CheckpointStorage): Where to.
        lineage (Lineage): The place of this start among all starts.
    """

    def __init__(
        self,
        hook: CheckpointHook,
        saver: CheckpointSaver,
        storage: CheckpointStorage,
        lineage: Lineage,
    ) -> None:
        self._hook = hook
        self._saver = saver
        self._storage = storage
        self._lineage = lineage
        # The newest checkpoint to resume from, for messages.
        self.last_good: str | None = None
        # Why the newest call of `save` has saved nothing.
        self.failure: Poisoned | OSError | None = None

    def save(
        self,
        runner: Runner,
        name: str,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> bool:
        """Save. A collective call.

        Args:
            runner (Runner): The runner.
            name (str): Of the file.
            state (dict, optional): What else a resumed run has to know.
                Defaults to None.
            **kwargs: For ``runner.save_checkpoint``.

        Returns:
            bool: Whether it was saved.
        """
        # Reading a verdict may take an agreement of all ranks; the main
        # process alone would wait for it in vain.
        run_view.resolve_steps(runner)
        failure: list[Any] = [None]
        if is_sharded_run(runner):
            failure = [self._save_shards(runner, name, state or {}, kwargs)]
        elif is_main_process():
            failure = [self.save_here(runner, name, state or {}, kwargs)]
        broadcast_object_list(failure)
        if not isinstance(failure[0], (Poisoned, OSError, type(None))):
            # On all ranks: the others must not be left waiting.
            raise failure[0]
        self.failure = failure[0]
        if self.failure is None:
            return True
        self._report(runner, name, self.failure)
        return False

    def save_here(
        self,
        runner: Runner,
        name: str,
        state: dict[str, Any],
        kwargs: dict[str, Any],
        shards: dict | None = None,
    ) -> Exception | None:
        """Save on this rank; nobody else needs to come.

        Args:
            runner (Runner): The runner.
            name (str): Of the file.
            state (dict): What else a resumed run has to know.
            kwargs (dict): For ``runner.save_checkpoint``.
            shards (dict, optional): The files of all ranks. Defaults to
                None.

        Returns:
            Exception or None: Why it could not be saved.
        """
        # The list itself: the state is looked through before it is written.
        known = self._saver.placeholders.counts
        extra = {
            type(self._hook).__name__: {'placeholders': known, **state},
            LABEL: {
                'kind': kind_of(name, self._hook.max_keep_ckpts > 0),
                'lineage': self._lineage.as_dict(),
            },
            **({} if shards is None else {SHARDS: shards}),
        }
        try:
            self._storage.save(self._saver, runner, name, extra, **kwargs)
        except Poisoned as error:
            return Poisoned(name_saved_states(error.culprits, runner))
        except Exception as error:
            return error
        return None

    def _save_shards(
        self, runner: Runner, name: str, state: dict, kwargs: dict
    ) -> Exception | None:
        """Save the parts of all ranks, then what names them."""
        if not self._storage.is_local:
            return ConfigError(
                'SafeCheckpointHook saves shards to a local or shared disk '
                f'only, not to {self._hook.out_dir}.'
            )
        return save_shards(
            runner,
            Path(self._storage.path(name)),
            kwargs['save_optimizer'],
            lambda groups, record: self.save_here(
                runner, name, state, {**kwargs, 'groups': groups}, record
            ),
        )

    def _report(self, runner: Runner, name: str, failure: Exception) -> None:
        facts = {'name': name, 'reason': failure, 'last_good': ''}
        if self.last_good is not None:
            facts['last_good'] = _(
                ' The last good checkpoint is {path}.', path=self.last_good
            )
        if isinstance(failure, Poisoned):
            if is_main_process():
                runner.logger.error(
                    _(
                        'mmstable: poisoned: {name} is not saved, because '
                        'the state of the run is {reason}.{last_good}',
                        **facts,
                    )
                )
            event = records.Poisoned.now(
                runner.iter + 1, culprits=tuple(failure.culprits)
            )
            monitor_of(runner).emit(runner, event)
            return
        if is_main_process():
            is_over = runner.iter + 1 >= runner.max_iters
            text = _(
                NOT_SAVED
                if is_over
                else (
                    'mmstable: {name} is not saved: {reason}. Training '
                    'continues.{last_good}'
                ),
                **facts,
            )
            runner.logger.warning(text)
        monitor = monitor_of(runner)
        failed = CheckpointFailed.now(
            monitor.iteration, name=name, reason=str(failure)
        )
        monitor.emit(runner, failed)
