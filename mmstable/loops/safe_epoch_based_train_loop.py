"""Epoch-based training that resumes where it was, inside an epoch too."""

from __future__ import annotations

from typing import Any

from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import nn
from torch.utils.data import DataLoader

from mmstable.loops.batch_checks import check_batch_size, check_data
from mmstable.loops.safe_loop import SafeLoop
from mmstable.messages import _
from mmstable.registry import LOOPS, register_globally
from mmstable.run_state.data_position import DataPosition


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
            :class:`~mmstable.memory.oom_settings.OomSettings`. Defaults to
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
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1

    def run_iter(self, idx: int, data_batch: Any) -> None:
        """Train on one batch."""
        stage = {'batch_idx': idx, 'data_batch': data_batch}
        self.runner.call_hook('before_train_iter', **stage)
        outputs = self.train_step.run(data_batch, self._iter + 1)
        self._position = DataPosition(self._epoch, idx + 1)
        self.runner.call_hook('after_train_iter', **stage, outputs=outputs)
        self._iter += 1

    def _run(self) -> nn.Module:
        # Hooks begin to count where the run is, whatever a resume changed.
        saved = self._claim_position()
        self.runner.call_hook('before_train')
        if saved is None or self._saved is not None:
            saved = self._claim_position()
        if (
            saved is not None
            and self._position.index == 0
            and self._mark.validated != self._epoch
        ):
            self._validate_if_due()
        while self._epoch < self._max_epochs and not self.stop_training:
            self.run_epoch()
            self._validate_if_due()
        self.runner.call_hook('after_train')
        return self.runner.model

    def _claim_position(self) -> dict[str, Any] | None:
        saved = self._claim_saved()
        if self._iter > 0:
            self._move_to(self._find_position(saved))
        return saved

    def _validate_if_due(self) -> None:
        self._decide_current_val_interval()
        if self._epoch > 0:
            self._validate(self._epoch, self._max_epochs)

    def _find_position(self, saved: dict[str, Any] | None) -> DataPosition:
        length = len(self.dataloader)
        if saved is not None:
            return self._position_of(saved, length)
        index = self._iter - self._epoch * length
        return DataPosition(self._epoch, index if 0 <= index <= length else 0)

    def _move_to(self, position: DataPosition) -> None:
        self._position = position
        self._epoch, self._skip_batches = position.epoch, position.index
        length = len(self.dataloader)
        left = (self._max_epochs - position.epoch) * length - position.index
        self._end_at(self._iter + left)

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
