"""The hooks that tell of skipped steps, and save before a run ends."""

from __future__ import annotations

from typing import Any

from mmstable.config_paths import runtime_hooks
from mmstable.legacy.config.draft import Draft


def add_runtime_hooks(draft: Draft) -> None:
    """Add them wherever a safe wrapper was put: it must not skip silently."""
    origins = draft.origins.get('optim_wrapper')
    if not origins:
        return
    hooks = draft.settings.get('custom_hooks') or []
    known = {_name_of(hook) for hook in hooks}
    new = {k: hook for k, hook in runtime_hooks().items() if k not in known}
    for hook in new.values():
        draft.append('custom_hooks', hook, *origins)
    if new:
        draft.remarks['custom_hooks'] = ', '.join(new)


def _name_of(hook: Any) -> str:
    kind = hook.get('type') if isinstance(hook, dict) else type(hook)
    name = kind if isinstance(kind, str) else getattr(kind, '__name__', '')
    return name.rpartition('.')[2]
