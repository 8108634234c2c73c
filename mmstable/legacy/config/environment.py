"""Seeds, back-ends and processes become ``randomness`` and ``env_cfg``."""

from __future__ import annotations

from typing import Any

from mmstable.legacy.config.draft import Draft, take_dict
from mmstable.messages import _

_PROCESSES = ('mp_start_method', 'opencv_num_threads')


def translate_environment(draft: Draft) -> None:
    """Settle what the run needs of its machine."""
    _put_randomness(draft)
    if draft.settings.get('cudnn_benchmark') is not None:
        value = draft.settings.pop('cudnn_benchmark')
        draft.fill('env_cfg', {'cudnn_benchmark': value}, 'cudnn_benchmark')
    processes = _take(draft, _PROCESSES)
    if processes:
        draft.fill('env_cfg', {'mp_cfg': processes}, *processes)
    if draft.settings.get('dist_params') is not None:
        value = take_dict(draft, 'dist_params')
        draft.fill('env_cfg', {'dist_cfg': value}, 'dist_params')
    for key in ('cudnn_benchmark', 'dist_params'):
        draft.settings.pop(key, None)
    for key in ('gpu_ids', 'device'):
        if draft.settings.pop(key, None) is not None:
            draft.note(
                key, _('not needed, CUDA_VISIBLE_DEVICES says which GPUs')
            )


def _put_randomness(draft: Draft) -> None:
    taken = _take(draft, ('seed', 'deterministic'))
    if taken:
        draft.fill('randomness', taken, *taken)
    if taken.get('deterministic'):
        draft.note(
            'deterministic',
            _(
                'mmengine refuses operations that cannot be; mmcv only told '
                'cuDNN'
            ),
        )


def _take(draft: Draft, keys: tuple[str, ...]) -> dict[str, Any]:
    """Those of the keys that are set."""
    taken = {
        key: draft.settings.pop(key) for key in keys if key in draft.settings
    }
    return {key: value for key, value in taken.items() if value is not None}
