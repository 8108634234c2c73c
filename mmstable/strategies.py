"""Strategies for sharded models; any number of ranks can load the result.

``SafeFSDPStrategy`` is mmengine's FSDP that saves and resumes all that the
safe wrappers know. ``SafeFSDP2Strategy`` shards by DTensors, without a wrapper
around the model.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

import torch
from mmengine._strategy.distributed import DDPStrategy
from mmengine._strategy.fsdp import FSDPStrategy
from mmengine.device import get_device
from mmengine.dist import all_gather_object, get_world_size
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    StateDictType,
)
from torch.nn import Module
from torch.optim import Optimizer

from mmstable.checkpoint.shards import SHARDS, besides, state_dicts
from mmstable.errors import ConfigError
from mmstable.registry import STRATEGIES


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


@STRATEGIES.register_module()
class SafeFSDPStrategy(ShardedCheckpoints, FSDPStrategy):
    """mmengine's ``FSDPStrategy``, with checkpoints that can be resumed.

    mmengine 0.10 hands torch the optimizer state in an order of arguments
    that torch 2.1 has changed, and leaves out what a wrapper knows besides:
    the loss scale and the counters. It also asks for a GPU. With
    ``SafeCheckpointHook`` every rank saves and loads its own part.

    Args:
        state_dict_cfg (str or dict): As in mmengine. 'full' makes one file
            that a run with any number of ranks can load. The files of
            'local' cannot be loaded under ``weights_only=True``. Defaults to
            'full'.
        **kwargs: Other arguments of ``FSDPStrategy``.
    """

    model_wrapper: dict | None

    def __init__(
        self, *, state_dict_cfg: str | dict = 'full', **kwargs: Any
    ) -> None:
        super().__init__(state_dict_cfg=state_dict_cfg, **kwargs)
        if state_dict_cfg == 'full' and get_device() == 'cpu':
            # To move what is on the host already crashes inside torch.
            self.state_dict_type = StateDictType.FULL_STATE_DICT
            self.state_dict_config = FullStateDictConfig(rank0_only=True)
            self.optim_state_dict_config = FullOptimStateDictConfig(
                rank0_only=True
            )

    def optim_state_dict(self) -> dict:
        """The state of the whole optimizer, and of its wrapper."""
        wrapper = self.optim_wrapper
        if get_device() == 'cpu':
            state = _gather_by_key(self.model, wrapper.optimizer)
        else:
            state = FullyShardedDataParallel.optim_state_dict(
                self.model, wrapper.optimizer
            )
        return {**state, **besides(wrapper.state_dict())}

    def load_optim_state_dict(self, state_dict: dict) -> None:
        """Load what :meth:`optim_state_dict` gave, or shards."""
        if self._source is not None:
            super().load_optim_state_dict(state_dict)
            return
        wrapper = self.optim_wrapper
        own = besides(state_dict)
        state = FullyShardedDataParallel.optim_state_dict_to_load(
            model=self.model,
            optim=wrapper.optimizer,
            optim_state_dict={
                key: one for key, one in state_dict.items() if key not in own
            },
        )
        wrapper.load_state_dict({**state, **own})

    def _wrap_model(self, model: Module) -> Any:
        if get_device() == 'cpu':
            wrapper = dict(self.model_wrapper or {})
            wrapper.setdefault('type', 'MMFullyShardedDataParallel')
            # Given, because mmengine fills in the local rank otherwise.
            wrapper.setdefault('device_id', torch.device('cpu'))
            self.model_wrapper = wrapper
        return super()._wrap_model(model)


def _gather_by_key(model: Module, optimizer: Optimizer) -> dict[str, Any]:
    """The whole state of an optimizer, on the host. A collective call.

    torch gathers all entries of the state in the same memory. That is copied
    from a GPU in time, but on a CPU each entry would overwrite the last one.
    """
    state = optimizer.state_dict()
    mine = sorted({key for one in state['state'].values() for key in one})
    known = sorted({key for keys in all_gather_object(mine) for key in keys})
    whole: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for key in known:
        entries = {
            index: {key: one[key]}
            for index, one in state['state'].items()
            if key in one
        }
        gathered = FullyShardedDataParallel.optim_state_dict(
            model, optimizer, {**state, 'state': entries}
        )
        for name, one in copy.deepcopy(gathered.pop('state', {})).items():
            whole.setdefault(name, {}).update(one)
        rest.update(gathered)
    return {**rest, 'state': whole}


@STRATEGIES.register_module()
class SafeFSDP2Strategy(ShardedCheckpoints, DDPStrategy):
    """Shards a model by torch's ``fully_shard``.

    Checkpoints are those of ``SafeCheckpointHook``; mmengine's own hook
    cannot save a model of DTensors.

    Args:
        shard_modules (Sequence[str]): Class names of the modules that are
            gathered one by one, as the blocks of a transformer. Defaults to
            ().
        fully_shard_cfg (dict, optional): Arguments for ``fully_shard``.
            Defaults to None.
        **kwargs: Arguments of mmengine's ``DDPStrategy``.
    """

    def __init__(
        self,
        *,
        shard_modules: Sequence[str] = (),
        fully_shard_cfg: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._shard_modules = tuple(shard_modules)
        self._settings = dict(fully_shard_cfg or {})

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Say which hook can do it."""
        raise ConfigError(
            'SafeFSDP2Strategy: checkpoints are saved by '
            "default_hooks.checkpoint=dict(type='mmstable.SafeCheckpointHook'"
            ') only.'
        )

    def _wrap_model(self, model: Module) -> Any:
        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError as error:
            raise ConfigError(
                'SafeFSDP2Strategy needs `torch.distributed.fsdp.fully_shard`'
                ', which torch has from 2.6 on. SafeFSDPStrategy works with '
                'older ones.'
            ) from error
        from torch.distributed.device_mesh import init_device_mesh

        device = get_device()
        model = self.convert_model(model.to(device))
        mesh = init_device_mesh(device, (get_world_size(),))
        for module in model.modules():
            if type(module).__name__ in self._shard_modules:
                fully_shard(module, mesh=mesh, **self._settings)
        return fully_shard(model, mesh=mesh, **self._settings)


__all__ = ['SafeFSDP2Strategy', 'SafeFSDPStrategy']
