"""Translate a config of mmcv 1.x to mmengine."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from mmstable.legacy import hooks, loops, optim
from mmstable.legacy.draft import (
    OLD_KEYS,
    Translation,
    find_misspelt,
    is_all_old,
    is_loop,
    old_keys_of,
)

# The loop comes first: it decides what other settings mean.
_STEPS = (
    loops.translate_loop,
    optim.translate_optimizer,
    optim.translate_schedule,
    hooks.translate_checkpoints,
    loops.translate_evaluation,
    hooks.translate_log,
    loops.find_old_pipelines,
    loops.translate_data,
    loops.settle_validation,
    hooks.translate_custom_hooks,
    hooks.translate_environment,
    loops.translate_start,
    find_misspelt,
    hooks.add_runtime_hooks,
)


def translate(config: Mapping[str, Any]) -> Translation:
    """Translate a config whose bases are merged already.

    Args:
        config (Mapping): The config, left as it is. Without old keys the
            result is an equal config.
    """
    settings = copy.deepcopy(dict(config))
    old = old_keys_of(settings)
    if not old:
        return Translation(settings)
    order = list(settings)
    # Variables of a new config are not translated.
    variables = {
        key: settings.pop(key)
        for key in order
        if key in OLD_KEYS and key not in old
    }
    draft = Translation(settings, all_old=is_all_old(settings))
    loop: Any = settings.get('train_cfg')
    if is_loop(loop):
        by_iter = 'max_iters' in loop or 'IterBased' in str(loop.get('type'))
        draft.by_epoch = bool(loop.get('by_epoch', not by_iter))
    for one in _STEPS:
        one(draft)
    draft.settings.update(variables)
    draft.settings = _in_order(draft, order)
    return draft


def _in_order(draft: Translation, order: list[str]) -> dict[str, Any]:
    """Put every new key in the place of its first old one."""
    keys = dict.fromkeys([*draft.origins, *draft.settings])
    places = {key: place for place, key in enumerate(order)}

    def place(key: str) -> int:
        names = (key, *draft.origins.get(key, ()))
        return min(places.get(name, len(order)) for name in names)

    return {
        key: draft.settings[key]
        for key in sorted(keys, key=place)
        if key in draft.settings
    }
