"""Make a loaded checkpoint fit for ``Runner.resume``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmstable.messages import _


def prepare_to_resume(checkpoint: dict[str, Any]) -> list[str]:
    """Add what mmcv 1.x did not save.

    Meant for the stage ``after_load_checkpoint``, which comes before
    mmengine looks at anything but the weights.

    Args:
        checkpoint (dict): The checkpoint, changed in place.

    Returns:
        list[str]: What was changed, in words.
    """
    notes = []
    meta = checkpoint.get('meta')
    if meta and 'message_hub' not in checkpoint and 'optimizer' in checkpoint:
        checkpoint['message_hub'] = dict(
            log_scalars={}, runtime_info={}, resumed_keys={}
        )
        notes.append(_('written by mmcv 1.x: it has no log history'))
        scaler = _loss_scaler_of_mmcv(meta)
        if scaler is not None:
            checkpoint['optimizer'] = _add_scaler(
                checkpoint['optimizer'], scaler
            )
            notes.append(_('its loss scale is {scale}', scale=scaler['scale']))
    return notes


def _loss_scaler_of_mmcv(meta: Mapping[str, Any]) -> dict[str, Any] | None:
    scaler = (meta.get('fp16') or {}).get('loss_scaler')
    if not scaler:
        return None
    if 'scale' in scaler:
        return dict(scaler)
    # What mmcv did before torch had mixed precision of its own.
    return {'scale': float(scaler['cur_scale'])}


def _add_scaler(optimizer: Any, scaler: dict[str, Any]) -> dict[str, Any]:
    if 'param_groups' in optimizer:
        return {'loss_scaler': scaler, **optimizer}
    return {name: _add_scaler(one, scaler) for name, one in optimizer.items()}
