"""Which keys of a config are mmcv's, and which are mmengine's?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What mmcv 1.x and the projects built on it read at the top of a config, and
# mmengine does not. `load_from`, `custom_hooks`, `work_dir`, `log_level`,
# `find_unused_parameters` and `auto_scale_lr` have kept their names.
OLD_KEYS = (
    'fp16',
    'optimizer',
    'optimizer_config',
    'lr_config',
    'momentum_config',
    'runner',
    'total_epochs',
    'total_iters',
    'workflow',
    'checkpoint_config',
    'log_config',
    'evaluation',
    'data',
    'resume_from',
    'auto_resume',
    'seed',
    'deterministic',
    'cudnn_benchmark',
    'dist_params',
    'opencv_num_threads',
    'mp_start_method',
    'profiler_config',
    'gpu_ids',
    'device',
)
# Names that a new config may well use for variables of its own. They are old
# only if nothing new says the same.
_VARIABLES = {
    'total_epochs': 'train_cfg',
    'total_iters': 'train_cfg',
    'data': 'train_dataloader',
    'seed': 'randomness.seed',
    'deterministic': 'randomness.deterministic',
    'cudnn_benchmark': 'env_cfg.cudnn_benchmark',
    'dist_params': 'env_cfg.dist_cfg',
    'opencv_num_threads': 'env_cfg.mp_cfg',
    'mp_start_method': 'env_cfg.mp_cfg',
    'gpu_ids': 'optim_wrapper',
    'device': 'optim_wrapper',
}
# What no config of mmcv has.
_NEW_KEYS = (
    'optim_wrapper',
    'param_scheduler',
    'default_hooks',
    'env_cfg',
    'randomness',
    'train_dataloader',
    'val_cfg',
    'log_processor',
    'visualizer',
)
_LOOP_KEYS = ('by_epoch', 'max_epochs', 'max_iters', 'val_interval')


def old_keys_of(settings: Mapping[str, Any]) -> list[str]:
    """The keys that only mmcv would have understood."""
    return [
        key
        for key in settings
        if key in OLD_KEYS and not _is_variable(key, settings)
    ]


def is_all_old(settings: Mapping[str, Any]) -> bool:
    """Whether nothing in it was written for mmengine."""
    return not (
        any(key in settings for key in _NEW_KEYS)
        or is_loop(settings.get('train_cfg'))
    )


def is_loop(train_cfg: Any) -> bool:
    """Whether ``train_cfg`` is of mmengine, not of an old detector."""
    if not isinstance(train_cfg, Mapping):
        return False
    kind = train_cfg.get('type')
    return any(key in train_cfg for key in _LOOP_KEYS) or (
        kind is not None and str(kind).endswith('Loop')
    )


def _is_variable(key: str, settings: Mapping[str, Any]) -> bool:
    if key == 'optimizer':
        return _has_optimizer(settings.get('optim_wrapper'))
    other = _VARIABLES.get(key)
    if other == 'train_cfg':
        return is_loop(settings.get('train_cfg'))
    return other is not None and _look_up(settings, other) is not None


def _look_up(settings: Any, path: str) -> Any:
    for name in path.split('.'):
        if not isinstance(settings, Mapping):
            return None
        settings = settings.get(name)
    return settings


def _has_optimizer(wrapper: Any) -> bool:
    if not isinstance(wrapper, Mapping):
        return wrapper is not None
    # With a constructor of its own it may hold several.
    return 'optimizer' in wrapper or 'constructor' in wrapper
