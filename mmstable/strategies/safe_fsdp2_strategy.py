"""FSDP2: parameters as DTensors, without a wrapper around the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmengine._strategy.distributed import DDPStrategy
from mmengine.device import get_device
from mmengine.dist import get_world_size
from torch.nn import Module

from mmstable.errors import ConfigError
from mmstable.registry import STRATEGIES
from mmstable.strategies.sharded_checkpoints import ShardedCheckpoints


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
