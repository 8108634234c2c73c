"""What a run with a sharded model saves: parts of each rank, and the rest."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import mmengine
import torch
from mmengine.dist import all_gather_object
from mmengine.utils import digit_version

from mmstable.checkpoint.audit import find_poison
from mmstable.errors import ConfigError

_OF_THE_OPTIMIZER = ('state', 'param_groups')


def is_sharded_run(runner: Any) -> bool:
    """Whether the strategy of a runner saves and loads by shards."""
    return getattr(getattr(runner, 'strategy', None), 'keeps_shards', False)


def check_sharded(runner: Any) -> None:
    """Refuse runners that are none of mmengine's usual ones."""
    if not is_sharded_run(runner):
        raise ConfigError(
            'SafeCheckpointHook saves with mmengine.runner.Runner, or with '
            'FlexibleRunner and mmstable.SafeFSDPStrategy or '
            f'mmstable.SafeFSDP2Strategy, got {type(runner).__name__} without '
            'them. Use CheckpointHook with it.'
        )


def state_dicts() -> Any:
    """Torch's module that takes the state of sharded models apart."""
    if digit_version(torch.__version__) < digit_version('2.4'):
        # Before, torch reads shards by a pickle that may run anything.
        raise ConfigError(
            'SafeCheckpointHook saves shards with torch 2.4 or newer, this '
            f'is {torch.__version__}. Use CheckpointHook.'
        )
    from torch.distributed.checkpoint import state_dict

    return state_dict


def local_parts(
    runner: Any, save_optimizer: bool
) -> tuple[dict[str, Any], Any]:
    """This rank's tensors, and the optimizer's groups. A collective call."""
    sharded = state_dicts()
    parts = {'model': sharded.get_model_state_dict(runner.model)}
    if not save_optimizer:
        return parts, None
    state = sharded.get_optimizer_state_dict(
        runner.model, runner.optim_wrapper.optimizer
    )
    return {**parts, 'optimizer': state['state']}, state['param_groups']


def find_poison_on_all(parts: Mapping[str, Any]) -> list[Any]:
    """Where a part of any rank is not finite. A collective call."""
    mine = find_poison(
        {
            'state_dict': _local(parts['model']),
            'optimizer': {'state': _local(parts.get('optimizer', {}))},
        }
    )
    found = {one for ours in all_gather_object(mine) for one in ours}
    return sorted(found, key=str)


def rest_of(runner: Any, groups: Any, **kwargs: Any) -> dict[str, Any]:
    """All of a checkpoint but the tensors that are spread over the ranks.

    Args:
        runner (FlexibleRunner): The runner.
        groups (list, optional): The groups of the optimizer.
        **kwargs: As for ``runner.save_checkpoint``.
    """
    meta = {
        **kwargs['meta'],
        'seed': runner.seed,
        'time': time.strftime('%Y%m%d_%H%M%S', time.localtime()),
        'mmengine': mmengine.__version__,
        'cfg': runner.cfg.pretty_text,
        'experiment_name': runner.experiment_name,
    }
    metainfo = getattr(runner.train_dataloader.dataset, 'metainfo', None)
    if metainfo is not None:
        meta['dataset_meta'] = metainfo
    checkpoint: dict[str, Any] = {
        'meta': meta,
        'message_hub': runner.message_hub.state_dict(),
        'state_dict': {},
    }
    if groups is not None:
        own = besides(runner.optim_wrapper.state_dict())
        checkpoint['optimizer'] = {'param_groups': groups, **own}
    if kwargs['save_param_scheduler'] and runner.param_schedulers:
        checkpoint['param_schedulers'] = runner.strategy.scheduler_state_dict()
    runner.call_hook('before_save_checkpoint', checkpoint=checkpoint)
    return checkpoint


def besides(state: Mapping[str, Any]) -> dict[str, Any]:
    """What a wrapper knows besides the optimizer."""
    return {k: v for k, v in state.items() if k not in _OF_THE_OPTIMIZER}


def _local(content: Any) -> Any:
    """The same, with the part that this rank holds of each tensor."""
    if isinstance(content, Mapping):
        return {key: _local(value) for key, value in content.items()}
    if hasattr(content, 'local_shards'):
        return {
            str(number): shard.tensor.detach()
            for number, shard in enumerate(content.local_shards())
        }
    if hasattr(content, 'to_local'):
        return content.to_local().detach()
    return content
