"""Iteration-based training that resumes where it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from mmengine.runner import BaseLoop, IterBasedTrainLoop, Runner
from torch import nn
from torch.utils.data import DataLoader

from mmstable.loops.batch_checks import check_batch_size, check_data
from mmstable.loops.endless_batches import EndlessBatches
from mmstable.loops.pass_rng import capture_pass_rng, restore_pass_rng
from mmstable.loops.reread_batches import reread
from mmstable.loops.safe_loop import SafeLoop
from mmstable.loops.skip_batches import can_skip
from mmstable.registry import LOOPS, register_globally
from mmstable.run_state.data_position import (
    DataPosition,
    pass_length,
    position_of_iteration,
)
from mmstable.run_state.rng import capture_rng, restore_rng
from mmstable.run_state.workers import draw_worker_seed


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
            :class:`~mmstable.memory.oom_settings.OomSettings`. Defaults to
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
        self._first_pass_rng = capture_pass_rng(loader)
        draw_worker_seed(loader)

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
        stage = {'batch_idx': self._iter, 'data_batch': data_batch}
        self.runner.call_hook('before_train_iter', **stage)
        outputs = self.train_step.run(data_batch, self._iter + 1)
        if self._batches is not None:
            self._position = self._batches.position
        self.runner.call_hook('after_train_iter', **stage, outputs=outputs)
        self._iter += 1

    def restart_workers(self) -> None:
        """Read on from here with new workers, as the loader is set now."""
        if self._batches is not None:
            # As after a resume: the order of this pass stays as it is.
            self._saved_rng = self.rng_state()
            self._batches.reopen()

    def _run(self) -> nn.Module:
        self.runner.call_hook('before_train')
        saved = self._claim_saved()
        position = self._find_position(saved)
        self._position = position or self._position
        self.runner.call_hook('before_train_epoch')
        if saved is not None and self._mark.validated != self._iter:
            self._validate_if_due()
        batches: EndlessBatches | None = None
        while self._iter < self._max_iters and not self.stop_training:
            batches = batches or self._open(position)
            self.runner.model.train()
            self.run_iter(next(batches))
            self._validate_if_due()
        # Lets workers go, which an endless sampler would keep for ever.
        batches = self._batches = None
        self.runner.call_hook('after_train_epoch')
        self.runner.call_hook('after_train')
        return self.runner.model

    def _validate_if_due(self) -> None:
        self._decide_current_val_interval()
        if self._iter > 0:
            self._validate(self._iter, self._max_iters)

    def _find_position(
        self, saved: dict[str, Any] | None
    ) -> DataPosition | None:
        if saved is None:
            return position_of_iteration(self.dataloader, self._iter)
        return self._position_of(saved, pass_length(self.dataloader))

    def _open(self, position: DataPosition | None) -> EndlessBatches:
        if position == DataPosition() or (
            position and can_skip(self.dataloader)
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
                restore_pass_rng(self.dataloader, rng['pass_start'])
        batches = EndlessBatches(
            self.dataloader, self._open_pass, DataPosition()
        )
        reread(batches, count)
        restore_rng(after)
        return batches
