"""What a preset of ``configs/_base_/stability`` asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mmstable.config_paths import shipped_settings
from mmstable.hooks import DivergenceGuardHook
from mmstable.legacy.config.render import one_line
from mmstable.optim import SafeAmpOptimWrapper, SafeOptimWrapper
from mmstable.protection.change import Group, Path
from mmstable.protection.draft import Draft, dotted

# For the command line: commands/train.py must not import mmengine.
DEFAULT = 'default'


@dataclass(frozen=True)
class Preset:
    """A preset, as far as protection is concerned.

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
    """A preset by its name.

    The default one sets no number: a healthy run stays what it is.
    """
    if name == DEFAULT:
        return Preset()
    settings = shipped_settings(f'_base_/stability/{name}.py')['stability']
    return Preset(
        settings.get('safe_classes', True),
        _without(settings['optim_wrapper'], '_delete_'),
        _without(settings['guard'], 'type'),
        settings.get('hooks', {}),
    )


def apply_settings(draft: Draft, preset: Preset) -> None:
    """Set what a preset asks for; it was chosen, so it wins."""
    for path in draft.wrappers():
        _set_wrapper(draft, path, preset)
    for path, found in list(draft.hooks()):
        name = getattr(found, '__name__', '')
        settings = preset.hooks.get(name) or {}
        if name == DivergenceGuardHook.__name__:
            settings = preset.guard
        for key, value in settings.items():
            _set(draft, (*path, key), value)


def _set_wrapper(draft: Draft, path: Path, preset: Preset) -> None:
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
        _set(draft, (*path, key), value)


def _is_scaled(draft: Draft, path: Path, found: type) -> bool:
    dtype = str(draft.get(*path, 'dtype') or 'float16')
    return issubclass(found, SafeAmpOptimWrapper) and 'bfloat16' not in dtype


def _is_stricter(given: Any, wanted: Mapping[str, Any]) -> bool:
    """Whether a config clips harder than a preset would."""
    if not isinstance(given, Mapping) or given.get('type', 'norm') != 'norm':
        return False
    limit, norm = given.get('max_norm'), given.get('norm_type', 2)
    return (
        isinstance(limit, (int, float))
        and norm == wanted['norm_type']
        and limit <= wanted['max_norm']
    )


def _set(draft: Draft, path: Path, value: Any) -> None:
    where = dotted(path)
    word = f'{where}={one_line(value, where)}'
    draft.put(path, value, Group.SETTING, word)


def _without(node: Any, key: str) -> Any:
    """The same without a key, at any depth."""
    if not isinstance(node, Mapping):
        return node
    return {k: _without(v, key) for k, v in node.items() if k != key}
