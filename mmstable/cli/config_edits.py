"""What the options of ``mmstable train`` change in a config."""

from __future__ import annotations

import os
from typing import Any

from mmengine.config import Config, ConfigDict

from mmstable.errors import UsageError
from mmstable.messages import say as message

# What `--amp` replaces. Other types carry logic of their own.
_PLAIN_WRAPPERS = (
    'OptimWrapper',
    'AmpOptimWrapper',
    'SafeOptimWrapper',
    'SafeAmpOptimWrapper',
)
_SAFE_AMP = 'mmstable.SafeAmpOptimWrapper'
_QUEUED = 'mmstable.QueuedVisBackend'
_DTYPES = {'fp16': 'float16', 'bf16': 'bfloat16'}


def set_work_dir(cfg: Config, work_dir: str | None, config: str) -> None:
    """Say where logs and checkpoints go; the config's own choice is kept."""
    if work_dir is not None:
        cfg.work_dir = work_dir
    elif cfg.get('work_dir') is None:
        name = os.path.splitext(os.path.basename(config))[0]
        cfg.work_dir = os.path.join('work_dirs', name)


def enable_amp(cfg: Config, precision: str = 'auto') -> None:
    """Turn the config's optimizer wrapper into the safe mixed one.

    Args:
        cfg (Config): The config to change.
        precision (str): 'fp16', 'bf16', or 'auto' for what the config says,
            or else the wrapper's default. Defaults to 'auto'.
    """
    wrapper = cfg.get('optim_wrapper')
    if wrapper is None:
        raise UsageError(message('options.amp_without_wrapper'))
    if 'constructor' in wrapper and 'optimizer' not in wrapper:
        for value in wrapper.values():
            if isinstance(value, dict) and 'optimizer' in value:
                _make_safe_amp(value, precision)
    else:
        _make_safe_amp(wrapper, precision)


def _make_safe_amp(wrapper: ConfigDict, precision: str) -> None:
    kind = wrapper.get('type', 'OptimWrapper')
    name = kind if isinstance(kind, str) else kind.__name__
    if name.rpartition('.')[2] not in _PLAIN_WRAPPERS:
        known = _PLAIN_WRAPPERS
        raise UsageError(
            message('options.amp_wrapper', known=known, name=name)
        )
    wrapper.type = _SAFE_AMP
    if precision in _DTYPES:
        wrapper.dtype = _DTYPES[precision]


def scale_learning_rate(cfg: Config) -> None:
    """Let mmengine fit the learning rate to the batch size of all ranks."""
    settings = cfg.get('auto_scale_lr') or {}
    if 'base_batch_size' not in settings:
        raise UsageError(message('options.no_base_batch_size'))
    cfg.auto_scale_lr.enable = True


def set_seed(cfg: Config, seed: int | None, deterministic: bool) -> None:
    """Set the seed and the determinism of the run."""
    if seed is None and not deterministic:
        return
    randomness = dict(cfg.get('randomness') or {})
    if seed is not None:
        randomness['seed'] = seed
    if deterministic:
        randomness['deterministic'] = True
    cfg.randomness = randomness


def guard_vis_backends(cfg: Config) -> None:
    """Keep the visualizer's back-ends from stopping or blocking the run."""
    if cfg.get('visualizer') is None:
        # As mmengine does by itself.
        cfg.visualizer = dict(
            type='Visualizer', vis_backends=[dict(type='LocalVisBackend')]
        )
    visualizer = cfg.visualizer
    backends = isinstance(visualizer, dict) and visualizer.get('vis_backends')
    if not backends:
        return
    if isinstance(backends, dict):
        backends = [backends]
    visualizer['vis_backends'] = [_queued(one) for one in backends]


def _name_of(settings: Any) -> str:
    """The class that settings name, without its scope; '' if they do not."""
    kind = settings.get('type') if isinstance(settings, dict) else None
    name = kind if isinstance(kind, str) else getattr(kind, '__name__', '')
    return name.rpartition('.')[2]


def _queued(backend: Any) -> Any:
    name = _name_of(backend)
    if not name or name == _QUEUED.rpartition('.')[2]:
        return backend
    inner = dict(backend)
    # Known to others by the name of the back-end in it.
    return dict(
        type=_QUEUED, name=inner.pop('name', None) or name, backend=inner
    )


def add_probe(cfg: Config) -> None:
    """Let the run be looked into, unless its config has said how."""
    hooks = list(cfg.get('custom_hooks') or [])
    if not any(_name_of(one) == 'LiveProbeHook' for one in hooks):
        cfg.custom_hooks = [*hooks, dict(type='mmstable.LiveProbeHook')]


# Hooks of mmengine, which it drops by itself.
OWN_HOOKS = (
    'runtime_info',
    'timer',
    'sampler_seed',
    'logger',
    'param_scheduler',
    'checkpoint',
)


def drop_absent_hooks(cfg: Config) -> None:
    """Let ``default_hooks = dict(guard=None)`` switch a hook off.

    mmengine takes None for its own names only.
    """
    hooks = cfg.get('default_hooks') or {}
    for name in [n for n in hooks if hooks[n] is None]:
        if name not in OWN_HOOKS:
            hooks.pop(name)


def disable_validation(cfg: Config) -> None:
    """Remove what validation needs, and what depends on its results."""
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    checkpoint = (cfg.get('default_hooks') or {}).get('checkpoint')
    if checkpoint:
        # It would wait for a metric that never comes.
        checkpoint.pop('save_best', None)
