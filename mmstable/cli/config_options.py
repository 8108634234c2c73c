"""``--cfg-options``: single values of a config, changed by dotted names."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mmengine.config import Config, ConfigDict, DictAction

from mmstable.cli.suggest import did_you_mean, suggest
from mmstable.errors import UsageError
from mmstable.legacy.config import OLD_KEYS
from mmstable.messages import _
from mmstable.messages.secrets import mask_words
from mmstable.preflight.rules.keys import top_level_keys
from mmstable.settings import nearest

_LOOP = ('max_iters', 'max_epochs', 'val_interval', 'val_begin', 'by_epoch')


def read_options(words: Sequence[str]) -> dict[str, Any]:
    """Read ``--cfg-options`` as mmengine does.

    Args:
        words (Sequence[str]): Each ``KEY=VALUE``.

    Returns:
        dict: From dotted names to values.
    """
    for word in words:
        if not word.partition('=')[0].strip() or '=' not in word:
            (shown,) = mask_words([word])
            raise UsageError(
                _("--cfg-options takes KEY=VALUE, got '{word}'.", word=shown)
            )
    read = argparse.Namespace(options={})
    for word in words:
        try:
            DictAction([], 'options')(argparse.ArgumentParser(), read, [word])
        except (AssertionError, RecursionError) as error:
            (shown,) = mask_words([word])
            # mmengine quotes the value; or looks for lists inside of what is
            # none, for ever.
            if isinstance(error, AssertionError) and shown == word:
                raise _unreadable(f'{error}.') from error
            raise _unreadable(
                _(
                    "'{word}' cannot be read: a value is a number, a text, "
                    'or a list or tuple of those. Set the values of a dict '
                    'one by one, as default_hooks.logger.interval=10.',
                    word=shown,
                )
            ) from None
    return read.options


def merge_options(
    cfg: Config, options: Mapping[str, Any], allow_new: bool = False
) -> None:
    """Apply ``--cfg-options``.

    A setting that is None counts as one that is not there: below
    ``clip_grad=None`` there can be a ``clip_grad.max_norm``.

    Args:
        cfg (Config): The config to change.
        options (Mapping): From dotted names to values.
        allow_new (bool): Whether top-level names may be new.
            Defaults to False.
    """
    for key in options:
        if not allow_new:
            _refuse_new(cfg, key)
        _make_room(cfg, key)
    try:
        cfg.merge_from_dict(dict(options))
    except (KeyError, TypeError, IndexError, AssertionError) as error:
        raise _unreadable(error) from error


def _refuse_new(cfg: Config, key: str) -> None:
    """Refuse a new top-level name: most likely a slip of the keyboard."""
    top, __, rest = key.partition('.')
    read = top_level_keys()
    if top in cfg or top in read:
        return
    if rest:
        hint = did_you_mean(top, cfg.keys())
        raise UsageError(
            _(
                "--cfg-options: the config has no '{top}', needed by "
                "'{key}'.{hint}",
                top=top,
                key=key,
                hint=hint,
            )
        )
    # Those of mmcv are translated afterwards.
    if key not in OLD_KEYS:
        hint = suggest(_places_for(cfg, key) or nearest(key, {*read, *cfg}))
        raise UsageError(
            _(
                "--cfg-options: nothing reads '{key}' at the top of a "
                'config, so it would have no effect.{hint}',
                key=key,
                hint=hint,
            )
        )


def _places_for(cfg: Config, key: str) -> list[str]:
    """Where in the config a setting of this name would have an effect."""
    found = [path for path in _paths(cfg) if path.endswith(f'.{key}')]
    found.sort(key=lambda path: path.count('.'))
    if not found and key in _LOOP:
        found = [f'train_cfg.{key}']
    return found[:3]


def _paths(node: Any, prefix: str = '') -> Iterator[str]:
    pairs: Any = ()
    if isinstance(node, (dict, Config)):
        pairs = node.items()
    elif isinstance(node, (list, tuple)):
        pairs = enumerate(node)
    for name, value in pairs:
        yield f'{prefix}{name}'
        yield from _paths(value, f'{prefix}{name}.')


def _make_room(cfg: Config, key: str) -> None:
    """Put an empty dict wherever None is in the way to a setting."""
    node: Any = cfg
    for name in key.split('.')[:-1]:
        if isinstance(node, (list, tuple)) and name.isdigit():
            node = node[int(name)] if int(name) < len(node) else None
            continue
        if not isinstance(node, (dict, Config)) or name not in node:
            return
        if node[name] is None:
            node[name] = ConfigDict()
        node = node[name]


def _unreadable(error: object) -> UsageError:
    return UsageError(_('--cfg-options: {error}', error=error))
