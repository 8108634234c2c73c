"""What the options of ``mmstable train`` change in a config."""

from __future__ import annotations

import os

from mmengine.config import Config
from mmengine.optim import AmpOptimWrapper, OptimWrapper

from mmstable.cli.base_files import plain_settings
from mmstable.errors import UsageError
from mmstable.messages import _
from mmstable.optim import SafeAmpOptimWrapper, SafeOptimWrapper
from mmstable.preflight.config_tree import kind_of
from mmstable.protection.change import Group, apply_changes
from mmstable.protection.draft import Draft
from mmstable.protection.safe_classes import scoped

# What `--amp` replaces. Other types carry logic of their own.
_PLAIN_WRAPPERS = (
    OptimWrapper,
    AmpOptimWrapper,
    SafeOptimWrapper,
    SafeAmpOptimWrapper,
)

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
    draft = Draft(plain_settings(cfg))
    if draft.get('optim_wrapper') is None:
        raise UsageError(_('--amp: the config has no `optim_wrapper`.'))
    for path in draft.wrappers() or [('optim_wrapper',)]:
        if draft.wrapper_class(path) not in _PLAIN_WRAPPERS:
            known = [one.__name__ for one in _PLAIN_WRAPPERS]
            name = kind_of(draft.get(*path))
            raise UsageError(
                _(
                    '--amp: `optim_wrapper.type` must be one of {known}, got '
                    "'{name}'.",
                    known=known,
                    name=name,
                )
            )
        kind = scoped(SafeAmpOptimWrapper)
        draft.put((*path, 'type'), kind, Group.CLASS)
        if precision in _DTYPES:
            dtype = _DTYPES[precision]
            draft.put((*path, 'dtype'), dtype, Group.SETTING)
    apply_changes(cfg._cfg_dict, draft.changes)


def scale_learning_rate(cfg: Config) -> None:
    """Let mmengine fit the learning rate to the batch size of all ranks."""
    settings = cfg.get('auto_scale_lr') or {}
    if 'base_batch_size' not in settings:
        raise UsageError(
            _(
                '--auto-scale-lr: the config does not say which batch size '
                'its learning rate is for: `auto_scale_lr = '
                'dict(base_batch_size=...)`.'
            )
        )
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


def add_probe(cfg: Config, kind: str) -> None:
    """Add the hook for live inspection, or change that of the config.

    Args:
        cfg (Config): The config to change.
        kind (str): 'socket' for our own, 'probing' to start that package too.
    """
    hooks = list(cfg.get('custom_hooks') or [])
    if not any(kind_of(one) == 'LiveProbeHook' for one in hooks):
        hooks.append(dict(type='mmstable.LiveProbeHook'))
    if kind == 'probing':
        for hook in hooks:
            if kind_of(hook) == 'LiveProbeHook':
                hook['use_probing'] = True
    cfg.custom_hooks = hooks


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
