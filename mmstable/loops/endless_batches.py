"""Batches for ever, pass after pass, that know where they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable

from mmengine.logging import print_log
from torch.utils.data import DataLoader

from mmstable.messages import _
from mmstable.run_state.data_position import DataPosition, set_epoch


class EndlessBatches:
    """Iterate a loader again and again.

    Args:
        dataloader (DataLoader): The loader.
        open_pass (Callable): Gives the batches of a pass, without as many of
            the first ones as its argument says.
        position (DataPosition): Where to start.
    """

    def __init__(
        self,
        dataloader: DataLoader,
        open_pass: Callable[[int], Iterator[Any]],
        position: DataPosition,
    ) -> None:
        self._dataloader, self._open_pass = dataloader, open_pass
        self.position = position
        # The first pass is left as DistSamplerSeedHook has set it.
        if position.epoch > 0:
            set_epoch(dataloader, position.epoch)
        self._batches = open_pass(position.index)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._start_next_pass()
            batch = next(self._batches)
        self.position = DataPosition(
            self.position.epoch, self.position.index + 1
        )
        return batch

    def reopen(self) -> None:
        """Read on from here with a new iterator of the loader."""
        self._batches = self._open_pass(self.position.index)

    def _start_next_pass(self) -> None:
        if self.position.epoch == 0:
            print_log(
                _(
                    'The data was used once and starts again, and so on. '
                    'With InfiniteSampler workers would not have to restart.'
                ),
                logger='current',
            )
        self.position = DataPosition(self.position.epoch + 1)
        set_epoch(self._dataloader, self.position.epoch)
        self._batches = self._open_pass(0)
