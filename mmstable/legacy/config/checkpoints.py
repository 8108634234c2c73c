"""``checkpoint_config`` becomes the safe checkpoint hook."""

from __future__ import annotations

from typing import Any

from mmstable.legacy.config.draft import Draft, take_dict
from mmstable.messages import _

_KEPT = (
    'interval',
    'by_epoch',
    'save_optimizer',
    'out_dir',
    'max_keep_ckpts',
    'save_last',
    'filename_tmpl',
)
_KNOWN = (
    'type',
    *_KEPT,
    'sync_buffer',
    'file_client_args',
    'create_symlink',
    'meta',
)


def translate_checkpoints(draft: Draft) -> None:
    """Settle when checkpoints are saved, and how many are kept."""
    if 'checkpoint_config' not in draft.settings:
        return
    config = take_dict(draft, 'checkpoint_config')
    if config is None:
        # mmengine saves unless it is told not to.
        draft.fill('default_hooks', {'checkpoint': None}, 'checkpoint_config')
        return
    kind = config.get('type', 'CheckpointHook')
    if kind != 'CheckpointHook':
        draft.leave(
            'checkpoint_config.type',
            _(
                "'{kind}' is not mmcv's hook; SafeCheckpointHook takes its "
                'place',
                kind=kind,
            ),
        )
    else:
        draft.unknown(
            'checkpoint_config',
            [name for name in config if name not in _KNOWN],
            _KNOWN,
        )
    hook: dict[str, Any] = {
        'type': 'mmstable.SafeCheckpointHook',
        **{name: config[name] for name in _KEPT if name in config},
    }
    hook.setdefault('by_epoch', draft.by_epoch)
    if config.get('file_client_args'):
        hook['file_client_args'] = config['file_client_args']
    draft.fill('default_hooks', {'checkpoint': hook}, 'checkpoint_config')
    _tell_rest(draft, config)


def _tell_rest(draft: Draft, config: dict[str, Any]) -> None:
    if config.get('sync_buffer'):
        draft.append(
            'custom_hooks',
            {'type': 'SyncBuffersHook'},
            'checkpoint_config',
        )
    if 'create_symlink' in config:
        draft.note(
            'checkpoint_config.create_symlink',
            _('not needed, the file `last_checkpoint` names the newest one'),
        )
    if config.get('meta'):
        draft.leave(
            'checkpoint_config.meta',
            _(
                'mmengine fills in `meta` by itself: its version, the data '
                'set, the time'
            ),
        )
