"""Protect the run of a config: safe classes, hooks, presets, back-ends.

Plain settings in, changes out; nothing here builds or trains anything.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
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
from mmstable.hooks import DivergenceGuardHook
from mmstable.legacy.draft import old_keys_of
from mmstable.legacy.render import one_line
from mmstable.messages import N_, _
from mmstable.optim import SafeAmpOptimWrapper, SafeOptimWrapper
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
_SAFE_CLASSES = tuple(SAFE.values())
_NOTHING = object()
# By names that mean the same in every scope.
_STOCK_HOOKS = {
    name: {'type': f'mmengine.{hook["type"]}'}
    for name, hook in DEFAULT_HOOKS.items()
}
_REPLACED = (CheckpointHook, EMAHook, ParamSchedulerHook)


def scoped(kind: type) -> str:
    """Return the name of a class that works in every scope."""
    return f'mmstable.{kind.__name__}'


class Group(Enum):
    """Kind of a change."""

    CLASS = 'class'
    HOOK = 'hook'
    SETTING = 'setting'
    BACKEND = 'backend'


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


@dataclass(frozen=True)
class Protection:
    """The changes that protect a config.

    Args:
        preset (str): The name of the preset.
        changes (tuple): In the order in which they apply.
        left (tuple[str, ...]): Parts that cannot be protected, with their
            classes.
        strategy (str): A strategy whose engine owns the optimizer; '' for
            none.
    """

    preset: str
    changes: tuple[Change, ...]
    left: tuple[str, ...]
    strategy: str = ''

    def words(self, group: Group) -> list[str]:
        """Return the names of the changes of a kind, each once."""
        words = [one.word for one in self.changes if one.group is group]
        return list(dict.fromkeys(filter(None, words)))


def apply_changes(settings: Any, changes: Iterable[Change]) -> None:
    """Change a config in place.

    Args:
        settings (dict): The config: of plain dicts, or of mmengine's own.
        changes (Iterable[Change]): The changes.
    """
    for change in changes:
        put(settings, change.path, change.value)


class Draft:
    """Collects the changes of a config.

    Args:
        settings (Mapping): The config in plain types, left as it is.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings: dict[str, Any] = copy.deepcopy(dict(settings))
        self.changes: list[Change] = []
        self.left: list[str] = []
        self._classes: dict[tuple[str, str], type | None] = {}

    def get(self, *path: str | int) -> Any:
        """Return the value at a path; None if there is none."""
        return look_up(self.settings, path)

    def put(
        self, path: Keys, value: Any, group: Group, word: str = ''
    ) -> None:
        """Set a value, unless it is set already."""
        if look_up(self.settings, path, _NOTHING) != value:
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
        name = kind_of(hook)
        self.put(('custom_hooks', place), dict(hook), Group.HOOK, name)

    def class_at(
        self, path: Keys, registry: Registry, default: str = ''
    ) -> type | None:
        """Return the class of the dict at a path; None if it is unknown."""
        return self._class_of(self.get(*path), registry, default)

    def _class_of(
        self, node: Any, registry: Registry, default: str = ''
    ) -> type | None:
        if not isinstance(node, Mapping):
            return type(node) if node is not None else None
        kind = node.get('type', default)
        # Changing the scope of mmengine takes milliseconds each time.
        key = (registry.name, str(kind))
        if key not in self._classes:
            scope = self.settings.get('default_scope')
            found = None
            # Importing packages of the user may fail in any way. Building
            # the run imports them again, and reports the error.
            with suppress(Exception):
                found = find_class(registry, kind, scope)
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
        found = self.class_at(path, registry, default)
        if found in SAFE:
            word = dotted(path)
            safe = scoped(SAFE[found])
            self.put((*path, 'type'), safe, Group.CLASS, word)
        elif found is not None and not issubclass(found, _SAFE_CLASSES):
            self.leave(path, found)

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

    def leave(self, path: Keys, found: type) -> None:
        """List a part that is not replaced."""
        self.left.append(f'{dotted(path)} ({found.__name__})')

    def wrappers(self) -> list[Keys]:
        """Return the paths of the optimizer wrappers."""
        return wrapper_paths(self.settings)

    def wrapper_class(self, path: Keys) -> type | None:
        """Return the class of a wrapper."""
        return self.class_at(path, OPTIM_WRAPPERS, 'OptimWrapper')

    def hooks(self) -> list[tuple[Keys, type | None]]:
        """Return paths and classes of all hooks, mmengine's defaults included.

        Hooks that are switched off are omitted.
        """
        named = {**_STOCK_HOOKS, **(self.get('default_hooks') or {})}
        custom = self.get('custom_hooks') or ()
        nodes: dict[Keys, Any] = {
            ('default_hooks', name): node
            for name, node in named.items()
            if node is not None
        }
        nodes.update(
            {('custom_hooks', n): one for n, one in enumerate(custom)}
        )
        return [(p, self._class_of(node, HOOKS)) for p, node in nodes.items()]


def dotted(path: Keys) -> str:
    """Return a path as in ``--cfg-options``."""
    return '.'.join(map(str, path))


@dataclass(frozen=True)
class Preset:
    """The settings of a preset.

    Args:
        safe_classes (bool): Whether classes of mmengine are replaced.
            Defaults to True.
        wrapper (Mapping): Settings of every safe wrapper. Defaults to {}.
        guard (Mapping): Settings of the guard. Defaults to {}.
        hooks (Mapping): Settings of hooks of the runtime by their names;
            None for those that are not added. Defaults to {}.
    """

    safe_classes: bool = True
    wrapper: Mapping[str, Any] = field(default_factory=dict)
    guard: Mapping[str, Any] = field(default_factory=dict)
    hooks: Mapping[str, Any] = field(default_factory=dict)


def read_preset(name: str) -> Preset:
    """Read a preset.

    The default one sets no number: a healthy run stays the same.
    """
    if name == 'default':
        return Preset()
    settings = shipped_settings(f'_base_/stability/{name}.py')['stability']
    return Preset(
        settings.get('safe_classes', True),
        _without(settings['optim_wrapper'], '_delete_'),
        _without(settings['guard'], 'type'),
        settings.get('hooks', {}),
    )


def apply_settings(draft: Draft, preset: Preset) -> None:
    """Apply a preset; it overrides the config."""
    for path in draft.wrappers():
        _set_wrapper(draft, path, preset)
    if not preset.hooks and not preset.guard:
        return
    for path, found in draft.hooks():
        name = getattr(found, '__name__', '')
        settings = preset.hooks.get(name) or {}
        if name == DivergenceGuardHook.__name__:
            settings = preset.guard
        for key, value in settings.items():
            draft.set((*path, key), value)


def _set_wrapper(draft: Draft, path: Keys, preset: Preset) -> None:
    found = draft.wrapper_class(path)
    if found is None or not issubclass(found, SafeOptimWrapper):
        return
    for key, value in preset.wrapper.items():
        if key == 'loss_scale' and not _is_scaled(draft, path, found):
            continue
        if key == 'clip_grad' and _is_stricter(
            draft.get(*path, 'clip_grad'), value
        ):
            continue
        draft.set((*path, key), value)


def _is_scaled(draft: Draft, path: Keys, found: type) -> bool:
    dtype = str(draft.get(*path, 'dtype') or 'float16')
    return issubclass(found, SafeAmpOptimWrapper) and 'bfloat16' not in dtype


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


def _without(node: Any, key: str) -> Any:
    """Remove a key at any depth."""
    if not isinstance(node, Mapping):
        return node
    return {k: _without(v, key) for k, v in node.items() if k != key}


_LOADERS = ('train_dataloader', 'val_dataloader')


def save_memory(draft: Draft, name: str) -> None:
    """Apply a memory preset; the batch size of a step stays the same.

    Args:
        draft (Draft): The config.
        name (str): The preset.
    """
    preset = shipped_settings(f'_base_/memory/{name}.py')
    path = _only_wrapper(draft)
    wanted = preset['memory']['optim_wrapper']
    if 'dtype' in wanted:
        kind = scoped(SafeAmpOptimWrapper)
        draft.put((*path, 'type'), kind, Group.CLASS, dotted(path))
        draft.set((*path, 'dtype'), wanted['dtype'])
    _split_batch(draft, path, wanted['accumulative_counts'])
    for key in _LOADERS:
        _read_less_ahead(draft, key, preset['memory_loader'])
    hook = preset['memory']['hook']
    kinds = {kind_of(draft.get(*place)) for place, __ in draft.hooks()}
    if kind_of(hook) not in kinds:
        draft.add_hook(hook)


def _only_wrapper(draft: Draft) -> Keys:
    paths = draft.wrappers()
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
    if found is None or not issubclass(found, SafeOptimWrapper):
        name = getattr(found, '__name__', '?')
        raise UsageError(
            _(
                "--memory knows mmengine's own optimizer wrappers and the "
                'safe ones, not {name}.',
                name=name,
            )
        )
    return paths[0]


def _split_batch(draft: Draft, path: Keys, parts: int) -> None:
    """Accumulate several smaller batches."""
    size = whole_number(draft.get('train_dataloader', 'batch_size'))
    if size is None:
        return
    parts = max(n for n in range(1, parts + 1) if size % n == 0)
    if parts == 1:
        return
    before = whole_number(draft.get(*path, 'accumulative_counts')) or 1
    draft.set(('train_dataloader', 'batch_size'), size // parts)
    draft.set((*path, 'accumulative_counts'), before * parts)


def _read_less_ahead(
    draft: Draft, key: str, wanted: Mapping[str, Any]
) -> None:
    workers = whole_number(draft.get(key, 'num_workers'))
    if workers is None:
        # Without workers nothing is read ahead.
        return
    fewer = min(workers, wanted['num_workers'])
    for name, value in {**wanted, 'num_workers': fewer}.items():
        draft.set((key, name), value)


_QUEUED = 'mmstable.QueuedVisBackend'


def queue_backends(draft: Draft) -> None:
    """Write to every back-end of the visualizer from a thread."""
    if draft.get('visualizer') is None:
        # The default of mmengine.
        backend = _queued({'type': 'LocalVisBackend'})
        visualizer = {'type': 'Visualizer', 'vis_backends': [backend]}
        name = backend['name']
        draft.put(('visualizer',), visualizer, Group.BACKEND, name)
        return
    path = ('visualizer', 'vis_backends')
    backends = draft.get(*path)
    if not backends:
        return
    if isinstance(backends, Mapping):
        backends = [backends]
    queued = [_queued(one) for one in backends]
    new = [one for one, old in zip(queued, backends) if one is not old]
    if new:
        names = ', '.join(one['name'] for one in new)
        draft.put(path, queued, Group.BACKEND, names)


def _queued(backend: Any) -> Any:
    name = kind_of(backend) if isinstance(backend, Mapping) else ''
    if not name or name == _QUEUED.rpartition('.')[2]:
        return backend
    inner = dict(backend)
    # `visualizer.get_backend(name)` must still find it.
    return {
        'type': _QUEUED,
        'name': inner.pop('name', None) or name,
        'backend': inner,
    }


# They have optimizers and checkpoints of their own.
_ENGINES = ('DeepSpeedStrategy', 'ColossalAIStrategy')
# Those that SafeCheckpointHook saves with, besides a plain runner.
_OUR_STRATEGIES = ('SafeFSDPStrategy', 'SafeFSDP2Strategy')


def owner_of_optimizer(settings: Mapping[str, Any]) -> str:
    """Return the strategy whose engine owns the optimizer; '' if none."""
    strategy = kind_of(settings.get('strategy'))
    return strategy if strategy in _ENGINES else ''


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
    strategy = owner_of_optimizer(settings)
    if not _has_room(settings):
        return Protection(preset, (), ())
    chosen = read_preset(preset)
    draft = Draft(settings)
    if strategy:
        _watch_engine(draft, chosen)
        changes = tuple(draft.changes)
        return Protection(preset, changes, tuple(draft.left), strategy)
    if chosen.safe_classes:
        _replace_classes(draft)
    if memory is not None:
        save_memory(draft, memory)
    _add_hooks(draft, chosen)
    apply_settings(draft, chosen)
    queue_backends(draft)
    return Protection(preset, tuple(draft.changes), tuple(draft.left))


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
    for line in protection_lines(protection, title):
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


# Hooks that do not touch the optimizer.
_ENGINE_HOOKS = (
    'EventLogHook',
    'MemoryGuardHook',
    'EmergencyCheckpointHook',
    'RankFailureHook',
    'HangWatchdogHook',
)


def _watch_engine(draft: Draft, preset: Preset) -> None:
    """Protect what an engine leaves to the runner."""
    if preset.safe_classes:
        _replace_loops(draft)
    present = _present(draft)
    for name, hook in runtime_hooks().items():
        settings = preset.hooks.get(name, {})
        is_wanted = name in _ENGINE_HOOKS and settings is not None
        if is_wanted and name not in present:
            draft.add_hook({**hook, **settings})
    if hooks.EngineHook.__name__ not in present:
        draft.add_hook({'type': scoped(hooks.EngineHook)})
    queue_backends(draft)


def _has_room(settings: Mapping[str, Any]) -> bool:
    """Return whether hooks can be added; mmengine refuses other types."""
    named, custom = (settings.get(f'{k}_hooks') for k in ('default', 'custom'))
    return isinstance(named, (Mapping, type(None))) and isinstance(
        custom, (list, tuple, type(None))
    )


def _replace_classes(draft: Draft) -> None:
    for path in draft.wrappers():
        draft.keep_fixed_scale(path)
        draft.make_safe(path, OPTIM_WRAPPERS, 'OptimWrapper')
    if kind_of(draft.get('strategy')) == 'FSDPStrategy':
        # By name: importing mmengine's strategies imports their engines.
        kind = 'mmstable.SafeFSDPStrategy'
        draft.put(('strategy', 'type'), kind, Group.CLASS, 'strategy')
    _replace_loops(draft)
    _replace_hooks(draft)


def _replace_loops(draft: Draft) -> None:
    _replace_train_loop(draft)
    for key, kind in (('val_cfg', 'ValLoop'), ('test_cfg', 'TestLoop')):
        if isinstance(draft.get(key), Mapping):
            draft.make_safe((key,), LOOPS, kind)


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
    for path, found in draft.hooks():
        if found is None or not issubclass(found, _REPLACED):
            continue
        if found is CheckpointHook and _strategy_saves(draft):
            draft.leave(path, found)
        elif path in added and path[-1] not in named:
            hook = {**added[path], 'type': scoped(SAFE[found])}
            draft.put(path, hook, Group.CLASS, dotted(path))
        else:
            draft.make_safe(path, HOOKS)


def _strategy_saves(draft: Draft) -> bool:
    """Return whether a strategy of another package saves checkpoints."""
    is_flexible = kind_of(draft.get('runner_type')) == 'FlexibleRunner'
    strategy = kind_of(draft.get('strategy'))
    return is_flexible and strategy not in _OUR_STRATEGIES


def _add_hooks(draft: Draft, preset: Preset) -> None:
    present = _present(draft)
    for name, hook in runtime_hooks().items():
        settings = preset.hooks.get(name, {})
        if settings is not None and name not in present:
            draft.add_hook({**hook, **settings})
    if DivergenceGuardHook.__name__ not in present:
        _add_guard(draft, preset)


def _present(draft: Draft) -> set[str]:
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


def _add_guard(draft: Draft, preset: Preset) -> None:
    name = DivergenceGuardHook.__name__
    guard = {**preset.guard, 'type': scoped(DivergenceGuardHook)}
    hooks = draft.get('default_hooks') or {}
    if 'guard' not in hooks:
        draft.put(('default_hooks', 'guard'), guard, Group.HOOK, name)
    elif isinstance(hooks['guard'], Mapping) and 'type' not in hooks['guard']:
        # An option as `default_hooks.guard.max_rollbacks=1`.
        guard = {**guard, **hooks['guard']}
        draft.put(('default_hooks', 'guard'), guard, Group.HOOK, name)
    elif hooks['guard'] is not None:
        # Another hook has that name.
        draft.add_hook(guard)


_GROUPS = {
    Group.CLASS: (
        N_('replaced by safe versions (arguments unchanged): {paths}'),
        'paths',
    ),
    Group.HOOK: (N_('hooks added: {names}'), 'names'),
    Group.SETTING: (N_('set: {settings:; }'), 'settings'),
    Group.BACKEND: (
        N_('now written from a background thread: {names}'),
        'names',
    ),
}


def protection_lines(protection: Protection, title: str) -> Iterator[str]:
    """Yield a line for each kind of change.

    Args:
        protection (Protection): The changes.
        title (str): The first line.
    """
    if protection.strategy:
        yield _(
            '{name} owns optimizer, loss scale and checkpoints. Protected: '
            'signals, exceptions, lost ranks, hangs, memory, events, report. '
            'Not protected: bad steps are not skipped or explained, there is '
            'no rollback, and checkpoints are not verified.',
            name=protection.strategy,
        )
    if protection.changes:
        yield title
    for group, (text, field_name) in _GROUPS.items():
        words = protection.words(group)
        if words:
            yield '  ' + _(text, **{field_name: words})
    if protection.left:
        indent = '  ' if protection.changes else ''
        yield indent + _(
            'left alone, no safe class fits: {items}', items=protection.left
        )
