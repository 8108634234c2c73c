"""Checkpoints of sharded models that any number of ranks can load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from mmstable.checkpoint.sharded_run import besides, state_dicts
from mmstable.checkpoint.shards import SHARDS


class ShardedCheckpoints:
    """Lets a strategy load what ``SafeCheckpointHook`` saves by shards.

    Other checkpoints are loaded as the strategy does it.
    """

    # By this the hook knows that it can save shards.
    keeps_shards = True
    model: Any
    optim_wrapper: Any
    _source: tuple[Path, Mapping[str, Any]] | None = None

    def load_checkpoint(
        self,
        filename: str,
        *,
        callback: Callable[[dict], None] | None = None,
        **kwargs: Any,
    ) -> dict:
        """Load a checkpoint; its shards, if it names some."""

        def look(checkpoint: dict) -> None:
            record = checkpoint.get('mmstable', {}).get(SHARDS)
            self._source = record and (Path(filename), record)
            if callback is not None:
                callback(checkpoint)

        return super().load_checkpoint(  # type: ignore[misc]
            filename, callback=look, **kwargs
        )

    def load_model_state_dict(self, state_dict: dict, **kwargs: Any) -> None:
        """Load the weights."""
        if self._source is None:
            super().load_model_state_dict(  # type: ignore[misc]
                state_dict, **kwargs
            )
            return
        sharded = state_dicts()
        from mmstable.checkpoint.shard_files import read_shards

        weights = sharded.get_model_state_dict(self.model)
        read_shards({'model': weights}, *self._source)
        sharded.set_model_state_dict(self.model, weights)

    def load_optim_state_dict(self, state_dict: dict) -> None:
        """Load the state of the optimizer and of its wrapper."""
        if self._source is None:
            super().load_optim_state_dict(state_dict)  # type: ignore[misc]
            return
        sharded = state_dicts()
        from mmstable.checkpoint.shard_files import read_shards

        wrapper = self.optim_wrapper
        now = sharded.get_optimizer_state_dict(self.model, wrapper.optimizer)
        read_shards({'optimizer': now['state']}, *self._source, verify=False)
        sharded.set_optimizer_state_dict(
            self.model,
            wrapper.optimizer,
            {
                'state': now['state'],
                'param_groups': state_dict['param_groups'],
            },
        )
        whole = wrapper.optimizer.state_dict()
        wrapper.load_state_dict({**whole, **besides(state_dict)})
