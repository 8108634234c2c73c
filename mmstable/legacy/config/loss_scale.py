"""The loss scale of mmcv in the words of :class:`ScalePolicy`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmstable.errors import UsageError
from mmstable.legacy.config.draft import Draft
from mmstable.messages import _
from mmstable.numerics.scale_policy import ScalePolicy


def translate_loss_scale(draft: Draft, path: str, scale: Any) -> Any:
    """Understand all forms that ``fp16.loss_scale`` may have.

    Args:
        draft (Draft): Hears of what is to be told.
        path (str): Where the scale was found.
        scale (Any): The scale.
    """
    if isinstance(scale, Mapping):
        scale = _of_dict(dict(scale))
    elif isinstance(scale, (int, float)) and not isinstance(scale, bool):
        scale = float(scale)
        draft.note(
            path,
            _(
                'starts at {scale} as before, but backs off on overflows and '
                'grows again; dict(init_scale={scale}, frozen=True) does not',
                scale=scale,
            ),
        )
    try:
        ScalePolicy.from_config(scale)
    except (TypeError, ValueError) as error:
        where = path.rpartition('.')[0]
        raise UsageError(f'{where}: {error}') from error
    return scale


def _of_dict(scale: dict[str, Any]) -> dict[str, Any]:
    if not scale.pop('enabled', True):
        # What torch does then: the loss is not scaled at all.
        return {'init_scale': 1.0, 'frozen': True}
    # The words that mmcv used before torch had a scaler.
    if scale.pop('mode', 'dynamic') == 'static':
        scale['frozen'] = True
    if 'scale_factor' in scale:
        factor = scale.pop('scale_factor')
        scale.update(growth_factor=factor, backoff_factor=1 / factor)
    if 'scale_window' in scale:
        scale['growth_interval'] = scale.pop('scale_window')
    return scale
