"""Make the run of any config a protected one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmengine.hooks import CheckpointHook
from mmengine.registry import HOOKS, LOOPS, OPTIM_WRAPPERS

from mmstable.config_paths import runtime_hooks
from mmstable.hooks import DivergenceGuardHook
from mmstable.preflight.config_tree import kind_of
from mmstable.preflight.config_view import DEFAULT_HOOKS
from mmstable.protection.change import ABSENT, Group, Protection
from mmstable.protection.draft import Draft, dotted
from mmstable.protection.memory import save_memory
from mmstable.protection.presets import Preset, apply_settings, read_preset
from mmstable.protection.safe_classes import SAFE, is_foreign_hook, scoped
from mmstable.protection.vis_backends import queue_backends

# They have optimizers and checkpoints of their own.
_ENGINES = ('DeepSpeedStrategy', 'ColossalAIStrategy')
# Those that SafeCheckpointHook saves with, besides a plain runner.
_OUR_STRATEGIES = ('SafeFSDPStrategy', 'SafeFSDP2Strategy')


def protect(
    settings: Mapping[str, Any],
    preset: str = 'default',
    memory: str | None = None,
) -> Protection:
    """What to change in a config; a protected one needs no change.

    Args:
        settings (Mapping): The config with its bases, in plain types. It is
            left as it is.
        preset (str): One of ``configs/_base_/stability``.
            Defaults to 'default'.
        memory (str, optional): One of ``configs/_base_/memory``; None to
            leave that alone. Defaults to None.
    """
    strategy = kind_of(settings.get('strategy'))
    if strategy in _ENGINES:
        return Protection(preset, (), (), strategy)
    if not _has_room(settings):
        return Protection(preset, (), ())
    chosen = read_preset(preset)
    draft = Draft(settings)
    if chosen.safe_classes:
        _replace_classes(draft)
    if memory is not None:
        save_memory(draft, memory)
    _add_runtime_hooks(draft, chosen)
    _add_guard(draft, chosen)
    apply_settings(draft, chosen)
    queue_backends(draft)
    return Protection(preset, tuple(draft.changes), tuple(draft.left))


def _has_room(settings: Mapping[str, Any]) -> bool:
    """Whether there is a place for hooks; no run is built without."""
    named, custom = (settings.get(f'{k}_hooks') for k in ('default', 'custom'))
    return isinstance(named, (Mapping, type(None))) and isinstance(
        custom, (list, tuple, type(None))
    )


def _replace_classes(draft: Draft) -> None:
    for path in draft.wrappers():
        draft.make_safe(path, OPTIM_WRAPPERS, 'OptimWrapper')
    if kind_of(draft.get('strategy')) == 'FSDPStrategy':
        # By name: importing mmengine's strategies imports their engines.
        kind = 'mmstable.SafeFSDPStrategy'
        draft.put(('strategy', 'type'), kind, Group.CLASS, 'strategy')
    _replace_train_loop(draft)
    for key, kind in (('val_cfg', 'ValLoop'), ('test_cfg', 'TestLoop')):
        if isinstance(draft.get(key), Mapping):
            draft.make_safe((key,), LOOPS, kind)
    _replace_hooks(draft)


def _replace_train_loop(draft: Draft) -> None:
    loop = draft.get('train_cfg')
    if not isinstance(loop, Mapping):
        return
    kind = ''
    if 'type' not in loop and 'by_epoch' in loop:
        kind = 'Epoch' if loop['by_epoch'] else 'Iter'
        # mmengine chooses the loop by it; the loops do not accept it.
        draft.put(('train_cfg', 'by_epoch'), ABSENT, Group.CLASS)
        kind += 'BasedTrainLoop'
    draft.make_safe(('train_cfg',), LOOPS, kind)


def _replace_hooks(draft: Draft) -> None:
    named = draft.get('default_hooks') or {}
    # mmengine adds them, if nothing is said.
    added = {('default_hooks', k): v for k, v in DEFAULT_HOOKS.items()}
    for path, found in list(draft.hooks()):
        if found is CheckpointHook and _strategy_saves(draft):
            draft.leave(path, found)
        elif found in SAFE and path in added and path[-1] not in named:
            hook = {**added[path], 'type': scoped(SAFE[found])}
            draft.put(path, hook, Group.CLASS, dotted(path))
        elif found in SAFE:
            draft.make_safe(path, HOOKS)
        elif found is not None and is_foreign_hook(found):
            draft.leave(path, found)


def _strategy_saves(draft: Draft) -> bool:
    """Whether checkpoints are made by a strategy that is none of ours."""
    is_flexible = kind_of(draft.get('runner_type')) == 'FlexibleRunner'
    strategy = kind_of(draft.get('strategy'))
    return is_flexible and strategy not in _OUR_STRATEGIES


def _add_runtime_hooks(draft: Draft, preset: Preset) -> None:
    present = _present(draft)
    for name, hook in runtime_hooks().items():
        settings = preset.hooks.get(name, {})
        if settings is not None and name not in present:
            draft.add_hook({**hook, **settings})


def _present(draft: Draft) -> set[str]:
    """Classes of mmstable that the hooks of a config are, or derive from."""
    names = set()
    for path, found in draft.hooks():
        if found is None:
            names.add(kind_of(draft.get(*path)))
            continue
        names |= {
            one.__name__
            for one in found.__mro__
            if one.__module__.startswith('mmstable.')
        }
    return names


def _add_guard(draft: Draft, preset: Preset) -> None:
    name = DivergenceGuardHook.__name__
    if name in _present(draft):
        return
    guard = {**preset.guard, 'type': scoped(DivergenceGuardHook)}
    hooks = draft.get('default_hooks') or {}
    if 'guard' not in hooks:
        draft.put(('default_hooks', 'guard'), guard, Group.HOOK, name)
    elif isinstance(hooks['guard'], Mapping) and 'type' not in hooks['guard']:
        # An option as `default_hooks.guard.max_rollbacks=1`.
        guard = {**guard, **hooks['guard']}
        draft.put(('default_hooks', 'guard'), guard, Group.HOOK, name)
    elif hooks['guard'] is not None:
        # Somebody else's hook of that name.
        draft.add_hook(guard)
