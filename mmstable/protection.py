"""Protect the run of a config: safe classes, hooks, presets, back-ends.

Plain settings in, changes out; nothing here builds or trains anything.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mmengine.config import Config
from mmengine.hooks import CheckpointHook, EMAHook, ParamSchedulerHook
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import HOOKS, LOOPS, OPTIM_WRAPPERS, Registry
from mmengine.runner import (
    EpochBasedTrainLoop,
    IterBasedTrainLoop,
    TestLoop,
    ValLoop,
)

from mmstable import hooks, loops, optim
from mmstable.check.config_tree import (
    ABSENT,
    DEFAULT_HOOKS,
    Keys,
    kind_of,
    look_up,
    put,
    whole_number,
    wrapper_paths,
)
from mmstable.check.registry import find_class
from mmstable.errors import UsageError
from mmstable.legacy.draft import old_keys_of
from mmstable.legacy.render import one_line
from mmstable.messages import N_, _
from mmstable.settings import one_of, runtime_hooks, shipped_settings

# The presets of configs/_base_/stability and configs/_base_/memory.
PRESETS = ('default', 'safe', 'ultra_safe', 'observe_only')
MEMORY_PRESETS = ('balanced', 'max_saving', 'conservative')
SAFE: dict[type, type] = {
    OptimWrapper: optim.SafeOptimWrapper,
    AmpOptimWrapper: optim.SafeAmpOptimWrapper,
    CheckpointHook: hooks.SafeCheckpointHook,
    EMAHook: hooks.SafeEMAHook,
    ParamSchedulerHook: hooks.SafeParamSchedulerHook,
    EpochBasedTrainLoop: loops.SafeEpochBasedTrainLoop,
    IterBasedTrainLoop: loops.SafeIterBasedTrainLoop,
    ValLoop: loops.SafeValLoop,
    TestLoop: loops.SafeTestLoop,
}
_REPLACED_HOOKS = (CheckpointHook, EMAHook, ParamSchedulerHook)
_GUARD = 'DivergenceGuardHook'
_QUEUED = 'mmstable.QueuedVisBackend'
# They have optimizers and checkpoints of their own.
_ENGINES = ('DeepSpeedStrategy', 'ColossalAIStrategy')
# Hooks that do not touch the optimizer.
_ENGINE_HOOKS = (
    'EventLogHook',
    'MemoryGuardHook',
    'EmergencyCheckpointHook',
    'RankFailureHook',
    'HangWatchdogHook',
)
# Those that SafeCheckpointHook saves with, besides a plain runner.
_OUR_STRATEGIES = ('SafeFSDPStrategy', 'SafeFSDP2Strategy')
_UNSET = object()


class Group(Enum):
    """Kind of a change, with the line of the summary."""

    CLASS = N_('replaced by safe versions (arguments unchanged): {items}')
    HOOK = N_('hooks added: {items}')
    SETTING = N_('set: {items:; }')
    BACKEND = N_('now written from a background thread: {items}')


@dataclass(frozen=True)
class Change:
    """A setting and its new value.

    Args:
        path (tuple): Its path. The index behind the end of a list appends.
        value (Any): Its new value; ``ABSENT`` removes it.
        group (Group): Its kind.
        word (str): Its name in the summary; '' for none.
    """

    path: Keys
    value: Any
    group: Group
    word: str


def apply_changes(settings: Any, changes: Iterable[Change]) -> None:
    """Change a config, of plain dicts or of mmengine's own, in place."""
    for change in changes:
        put(settings, change.path, change.value)


def scoped(kind: type) -> str:
    """Return the name of a class that works in every scope."""
    return f'mmstable.{kind.__name__}'


def dotted(path: Keys) -> str:
    """Return a path as in ``--cfg-options``."""
    return '.'.join(map(str, path))


class Protection:
    """A config while it is protected, and its changes so far.

    Args:
        settings (Mapping): The config in plain types, left as it is.
        preset (str): The name of the preset. Defaults to 'default'.
    """

    def __init__(
        self, settings: Mapping[str, Any], preset: str = 'default'
    ) -> None:
        self.settings: dict[str, Any] = copy.deepcopy(dict(settings))
        self.preset = preset
        # In the order in which they apply.
        self.changes: list[Change] = []
        # Parts that cannot be protected, with their classes.
        self.left: list[str] = []
        # A strategy whose engine owns the optimizer.
        self.strategy = ''
        self._classes: dict[tuple[str, str], type | None] = {}

    def get(self, *path: str | int) -> Any:
        """Return the value at a path; None if there is none."""
        return look_up(self.settings, path)

    def put(
        self, path: Keys, value: Any, group: Group, word: str = ''
    ) -> None:
        """Set a value, unless it is set already."""
        if look_up(self.settings, path, _UNSET) != value:
            put(self.settings, path, value)
            self.changes.append(Change(path, value, group, word))

    def set(self, path: Keys, value: Any) -> None:
        """Set a value, and list it in the summary."""
        where = dotted(path)
        word = f'{where}={one_line(value, where)}'
        self.put(path, value, Group.SETTING, word)

    def add_hook(self, hook: Mapping[str, Any]) -> None:
        """Append a hook to ``custom_hooks``."""
        place = len(self.get('custom_hooks') or ())
        path = ('custom_hooks', place)
        self.put(path, dict(hook), Group.HOOK, kind_of(hook))

    def class_of(
        self, node: Any, registry: Registry, default: str = ''
    ) -> type | None:
        """Return the class that a dict means; None if it is unknown."""
        if not isinstance(node, Mapping):
            return type(node) if node is not None else None
        kind = node.get('type', default)
        # Changing the scope of mmengine takes milliseconds each time.
        key = (registry.name, str(kind))
        if key not in self._classes:
            found = None
            # Importing packages of the user may fail in any way. Building
            # the run imports them again, and reports the error.
            with suppress(Exception):
                found = find_class(registry, kind, self.get('default_scope'))
            self._classes[key] = found if inspect.isclass(found) else None
        return self._classes[key]

    def make_safe(
        self, path: Keys, registry: Registry, default: str = ''
    ) -> None:
        """Replace the class of a dict if it is one of mmengine's.

        Args:
            path (tuple): Path of the dict.
            registry (Registry): Registry of its class.
            default (str): The class of a dict without ``type``.
                Defaults to ''.
        """
        found = self.class_of(self.get(*path), registry, default)
        if found in SAFE:
            safe = scoped(SAFE[found])
            self.put((*path, 'type'), safe, Group.CLASS, dotted(path))
        elif found is not None and not issubclass(found, tuple(SAFE.values())):
            self.leave_alone(path, found)

    def leave_alone(self, path: Keys, found: type) -> None:
        """List a part that is not replaced."""
        self.left.append(f'{dotted(path)} ({found.__name__})')

    def wrapper_class(self, path: Keys) -> type | None:
        """Return the class of the optimizer wrapper at a path."""
        return self.class_of(self.get(*path), *_WRAPPER)

    def keep_fixed_scale(self, path: Keys) -> None:
        """Let a fixed loss scale fall and come back, but never grow.

        A number is fixed for mmengine's wrapper, and a start value for the
        safe one: to be called before the one replaces the other.

        Args:
            path (tuple): Where the wrapper is.
        """
        scale = self.get(*path, 'loss_scale')
        is_stock = self.wrapper_class(path) is AmpOptimWrapper
        if is_stock and isinstance(scale, float):
            fixed = dict(init_scale=scale, max_scale=scale)
            self.set((*path, 'loss_scale'), fixed)

    def hooks(self) -> list[tuple[Keys, type | None]]:
        """Return paths and classes of all hooks, mmengine's defaults included.

        Hooks that are switched off are omitted.
        """
        # By names that mean the same in every scope.
        stock = {
            name: {'type': f'mmengine.{hook["type"]}'}
            for name, hook in DEFAULT_HOOKS.items()
        }
        named = {**stock, **(self.get('default_hooks') or {})}
        nodes: list[tuple[Keys, Any]] = [
            (('default_hooks', name), node)
            for name, node in named.items()
            if node is not None
        ]
        custom = enumerate(self.get('custom_hooks') or ())
        nodes += [(('custom_hooks', n), one) for n, one in custom]
        return [(path, self.class_of(node, HOOKS)) for path, node in nodes]

    def lines(self, title: str) -> Iterator[str]:
        """Yield a line for each kind of change, after a title."""
        if self.strategy:
            yield _(
                '{name} owns optimizer, loss scale and checkpoints. '
                'Protected: signals, exceptions, lost ranks, hangs, memory, '
                'events, report. Not protected: bad steps are not skipped or '
                'explained, there is no rollback, and checkpoints are not '
                'verified.',
                name=self.strategy,
            )
        if self.changes:
            yield title
        for group in Group:
            words = [one.word for one in self.changes if one.group is group]
            items = list(dict.fromkeys(filter(None, words)))
            if items:
                yield '  ' + _(group.value, items=items)
        if self.left:
            indent = '  ' if self.changes else ''
            yield indent + _(
                'left alone, no safe class fits: {items}', items=self.left
            )


_WRAPPER = (OPTIM_WRAPPERS, 'OptimWrapper')


def find_changes(
    settings: Mapping[str, Any],
    preset: str = 'default',
    memory: str | None = None,
) -> Protection:
    """Return the changes that protect a config.

    Args:
        settings (Mapping): The config with its bases, in plain types; not
            modified.
        preset (str): One of ``configs/_base_/stability``.
            Defaults to 'default'.
        memory (str, optional): One of ``configs/_base_/memory``; None for
            none. Defaults to None.
    """
    draft = Protection(settings, preset)
    named, custom = map(draft.get, ('default_hooks', 'custom_hooks'))
    if not isinstance(named, (Mapping, type(None))) or not isinstance(
        custom, (list, tuple, type(None))
    ):
        # No hook can be added; mmengine refuses such a config.
        return draft
    # The default preset sets no number: a healthy run stays the same.
    chosen: dict[str, Any] = {'optim_wrapper': {}, 'guard': {}}
    if preset != 'default':
        path = f'_base_/stability/{preset}.py'
        chosen = _without_delete(shipped_settings(path)['stability'])
    draft.strategy = owner_of_optimizer(settings)
    if chosen.get('safe_classes', True):
        if not draft.strategy:
            _replace_wrappers(draft)
        _replace_loops(draft)
        if not draft.strategy:
            _replace_hooks(draft)
    if memory is not None and not draft.strategy:
        _save_memory(draft, memory)
    present, known = _present(draft), runtime_hooks()
    names = _ENGINE_HOOKS if draft.strategy else tuple(known)
    for name in [one for one in known if one in names]:
        # None is for no such hook.
        settings = chosen.get('hooks', {}).get(name, {})
        if settings is not None and name not in present:
            draft.add_hook({**known[name], **settings})
    if not draft.strategy:
        if _GUARD not in present:
            _add_guard(draft, chosen['guard'])
        _apply_preset(draft, chosen)
    elif hooks.EngineHook.__name__ not in present:
        draft.add_hook({'type': scoped(hooks.EngineHook)})
    _queue_backends(draft)
    return draft


def owner_of_optimizer(settings: Mapping[str, Any]) -> str:
    """Return the strategy whose engine owns the optimizer; '' if none."""
    strategy = kind_of(settings.get('strategy'))
    return strategy if strategy in _ENGINES else ''


def protect(
    cfg: Config | Mapping[str, Any] | str,
    preset: str = 'default',
    memory: str | None = None,
) -> Config:
    """Protect a config in Python, as ``mmstable train`` does.

    Args:
        cfg (Config, dict or str): The config, or its file; not modified.
        preset (str): 'default', 'safe', 'ultra_safe' or 'observe_only'.
            Defaults to 'default'.
        memory (str, optional): 'balanced', 'max_saving' or 'conservative' to
            take less memory. Defaults to None.

    Returns:
        Config: For ``Runner.from_cfg``.
    """
    if isinstance(cfg, str):
        cfg = Config.fromfile(cfg)
    # A copy, with all that a Config knows about its file.
    cfg = copy.deepcopy(cfg if isinstance(cfg, Config) else Config(dict(cfg)))
    settings = cfg._cfg_dict.to_dict()
    one_of('protect', 'preset', preset, PRESETS)
    if memory is not None:
        one_of('protect', 'memory', memory, MEMORY_PRESETS)
    if old_keys_of(settings):
        raise UsageError(
            _('a config of mmcv 1.x: translate it with `mmstable upgrade`.')
        )
    protection = find_changes(settings, preset, memory)
    apply_changes(cfg._cfg_dict, protection.changes)
    drop_absent_hooks(cfg)
    title = _(
        'protected with preset {preset} (mmstable.protect(cfg, preset=...) '
        'chooses another):',
        preset=preset,
    )
    for line in protection.lines(title):
        print(f'mmstable: {line}', flush=True)
    return cfg


def drop_absent_hooks(cfg: Config) -> None:
    """Let ``default_hooks = dict(guard=None)`` switch a hook off.

    mmengine takes None for its own names only.
    """
    hooks = cfg.get('default_hooks') or {}
    for name in [n for n in hooks if hooks[n] is None]:
        if name not in DEFAULT_HOOKS:
            hooks.pop(name)


def _without_delete(node: Any) -> Any:
    """Remove mmengine's ``_delete_`` at any depth."""
    if not isinstance(node, Mapping):
        return node
    return {k: _without_delete(v) for k, v in node.items() if k != '_delete_'}


def _replace_wrappers(draft: Protection) -> None:
    for path in wrapper_paths(draft.settings):
        draft.keep_fixed_scale(path)
        draft.make_safe(path, *_WRAPPER)
    if kind_of(draft.get('strategy')) == 'FSDPStrategy':
        # By name: importing mmengine's strategies imports their engines.
        kind = 'mmstable.SafeFSDPStrategy'
        draft.put(('strategy', 'type'), kind, Group.CLASS, 'strategy')


def _replace_loops(draft: Protection) -> None:
    loop = draft.get('train_cfg')
    if isinstance(loop, Mapping):
        kind = ''
        if 'type' not in loop and 'by_epoch' in loop:
            kind = 'Epoch' if loop['by_epoch'] else 'Iter'
            kind += 'BasedTrainLoop'
            # mmengine chooses the loop by it; the loops do not accept it.
            draft.put(('train_cfg', 'by_epoch'), ABSENT, Group.CLASS)
        draft.make_safe(('train_cfg',), LOOPS, kind)
    for key, kind in (('val_cfg', 'ValLoop'), ('test_cfg', 'TestLoop')):
        if isinstance(draft.get(key), Mapping):
            draft.make_safe((key,), LOOPS, kind)


def _replace_hooks(draft: Protection) -> None:
    for path, found in draft.hooks():
        if found is None or not issubclass(found, _REPLACED_HOOKS):
            continue
        if found is CheckpointHook and _strategy_saves(draft):
            draft.leave_alone(path, found)
        elif draft.get(*path) is None:
            # mmengine adds it.
            hook = {
                **DEFAULT_HOOKS[str(path[-1])],
                'type': scoped(SAFE[found]),
            }
            draft.put(path, hook, Group.CLASS, dotted(path))
        else:
            draft.make_safe(path, HOOKS)


def _strategy_saves(draft: Protection) -> bool:
    """Return whether a strategy of another package saves checkpoints."""
    is_flexible = kind_of(draft.get('runner_type')) == 'FlexibleRunner'
    strategy = kind_of(draft.get('strategy'))
    return is_flexible and strategy not in _OUR_STRATEGIES


def _present(draft: Protection) -> set[str]:
    """Return names of mmstable's classes among the hooks and their bases."""
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


def _add_guard(draft: Protection, settings: Mapping[str, Any]) -> None:
    guard = {**settings, 'type': f'mmstable.{_GUARD}'}
    named = (draft.get('default_hooks') or {}).get('guard', {})
    if isinstance(named, Mapping) and 'type' not in named:
        # An option as `default_hooks.guard.max_rollbacks=1`.
        path = ('default_hooks', 'guard')
        draft.put(path, {**guard, **named}, Group.HOOK, _GUARD)
    elif named is not None:
        # Another hook has that name.
        draft.add_hook(guard)


def _apply_preset(draft: Protection, preset: Mapping[str, Any]) -> None:
    """Set the numbers of a preset, which override the config."""
    for path in wrapper_paths(draft.settings):
        found = draft.wrapper_class(path)
        if found is None or not issubclass(found, optim.SafeOptimWrapper):
            continue
        dtype = str(draft.get(*path, 'dtype'))
        is_scaled = issubclass(found, optim.SafeAmpOptimWrapper)
        for key, value in preset['optim_wrapper'].items():
            if key == 'loss_scale' and (not is_scaled or 'bfloat16' in dtype):
                continue
            given = draft.get(*path, key)
            if key != 'clip_grad' or not _is_stricter(given, value):
                draft.set((*path, key), value)
    numbers = preset['guard'] or preset.get('hooks')
    for path, found in draft.hooks() if numbers else ():
        name = getattr(found, '__name__', '')
        settings = preset.get('hooks', {}).get(name) or {}
        if name == _GUARD:
            settings = preset['guard']
        for key, value in settings.items():
            if key != 'type':
                draft.set((*path, key), value)


def _is_stricter(given: Any, wanted: Mapping[str, Any]) -> bool:
    """Return whether a config clips harder than a preset."""
    if not isinstance(given, Mapping) or given.get('type', 'norm') != 'norm':
        return False
    limit, norm = given.get('max_norm'), given.get('norm_type', 2)
    return (
        isinstance(limit, (int, float))
        and norm == wanted['norm_type']
        and limit <= wanted['max_norm']
    )


def _save_memory(draft: Protection, name: str) -> None:
    """Apply a memory preset; the batch size of a step stays the same."""
    preset = shipped_settings(f'_base_/memory/{name}.py')
    path = _only_wrapper(draft)
    wanted = preset['memory']['optim_wrapper']
    if 'dtype' in wanted:
        kind = scoped(optim.SafeAmpOptimWrapper)
        draft.put((*path, 'type'), kind, Group.CLASS, dotted(path))
        draft.set((*path, 'dtype'), wanted['dtype'])
    size = whole_number(draft.get('train_dataloader', 'batch_size')) or 1
    parts = range(1, wanted['accumulative_counts'] + 1)
    count = max(n for n in parts if size % n == 0)
    if count > 1:
        before = whole_number(draft.get(*path, 'accumulative_counts')) or 1
        draft.set(('train_dataloader', 'batch_size'), size // count)
        draft.set((*path, 'accumulative_counts'), before * count)
    for key in ('train_dataloader', 'val_dataloader'):
        workers = whole_number(draft.get(key, 'num_workers'))
        # Without workers nothing is read ahead.
        if workers is not None:
            loader = preset['memory_loader']
            fewer = min(workers, loader['num_workers'])
            for word, value in {**loader, 'num_workers': fewer}.items():
                draft.set((key, word), value)
    hook = preset['memory']['hook']
    kinds = {kind_of(draft.get(*place)) for place, __ in draft.hooks()}
    if kind_of(hook) not in kinds:
        draft.add_hook(hook)


def _only_wrapper(draft: Protection) -> Keys:
    paths = wrapper_paths(draft.settings)
    if len(paths) != 1:
        raise UsageError(
            _(
                '--memory works with one optimizer wrapper, and the config '
                'has {count}. Set dtype and accumulative_counts of each by '
                'hand.',
                count=len(paths),
            )
        )
    found = draft.wrapper_class(paths[0])
    if found is None or not issubclass(found, optim.SafeOptimWrapper):
        name = getattr(found, '__name__', '?')
        raise UsageError(
            _(
                "--memory knows mmengine's own optimizer wrappers and the "
                'safe ones, not {name}.',
                name=name,
            )
        )
    return paths[0]


def _queue_backends(draft: Protection) -> None:
    """Write to every back-end of the visualizer from a thread."""
    path = ('visualizer', 'vis_backends')
    backends = draft.get(*path)
    if draft.get('visualizer') is None:
        # The default of mmengine.
        backends = {'type': 'LocalVisBackend'}
    if isinstance(backends, Mapping):
        backends = [backends]
    queued = [_queued(one) for one in backends or ()]
    new = [one for one in queued if one not in backends]
    if not new:
        return
    names = ', '.join(one['name'] for one in new)
    if draft.get('visualizer') is None:
        visualizer = {'type': 'Visualizer', 'vis_backends': queued}
        draft.put(('visualizer',), visualizer, Group.BACKEND, names)
    else:
        draft.put(path, queued, Group.BACKEND, names)


def _queued(backend: Any) -> Any:
    name = kind_of(backend) if isinstance(backend, Mapping) else ''
    if not name or name == kind_of(_QUEUED):
        return backend
    inner = dict(backend)
    # `visualizer.get_backend(name)` must still find it.
    name = inner.pop('name', None) or name
    return {'type': _QUEUED, 'name': name, 'backend': inner}
