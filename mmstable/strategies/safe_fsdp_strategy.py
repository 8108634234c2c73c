"""FSDP that saves and resumes all that the safe wrappers know."""

from __future__ import annotations

import copy
from typing import Any

import torch
from mmengine._strategy.fsdp import FSDPStrategy
from mmengine.device import get_device
from mmengine.dist import all_gather_object
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    StateDictType,
)
from torch.nn import Module
from torch.optim import Optimizer

from mmstable.registry import STRATEGIES
from mmstable.strategies.sharded_checkpoints import ShardedCheckpoints

_OF_THE_OPTIMIZER = ('state', 'param_groups')


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
        besides = {
            key: value
            for key, value in wrapper.state_dict().items()
            if key not in _OF_THE_OPTIMIZER
        }
        return {**state, **besides}

    def load_optim_state_dict(self, state_dict: dict) -> None:
        """Load what :meth:`optim_state_dict` gave, or shards."""
        if self._source is not None:
            super().load_optim_state_dict(state_dict)
            return
        wrapper = self.optim_wrapper
        plain = {key: state_dict[key] for key in _OF_THE_OPTIMIZER}
        besides = {k: v for k, v in state_dict.items() if k not in plain}
        state = FullyShardedDataParallel.optim_state_dict_to_load(
            model=self.model,
            optim=wrapper.optimizer,
            optim_state_dict=plain,
        )
        wrapper.load_state_dict({**state, **besides})

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
