"""``resume_from`` and ``auto_resume`` become ``resume``."""

from __future__ import annotations

from mmstable.legacy.config.draft import Draft
from mmstable.messages import _


def translate_start(draft: Draft) -> None:
    """Settle which checkpoint to go on from."""
    settings = draft.settings
    old = [key for key in ('resume_from', 'auto_resume') if key in settings]
    if not old:
        return
    resume_from = settings.pop('resume_from', None)
    auto = bool(settings.pop('auto_resume', False))
    load_from = settings.get('load_from')
    if resume_from is not None:
        if load_from is not None and load_from != resume_from:
            draft.note(
                'load_from',
                _(
                    '{value!r}: `resume_from` goes first, as in mmcv',
                    value=load_from,
                ),
            )
        draft.put('load_from', resume_from, 'resume_from')
    elif auto and load_from is not None:
        auto = False
        draft.leave(
            'auto_resume',
            _(
                'mmengine resumes by itself only without a `load_from`. Go '
                'on with a run by `mmstable train --resume`'
            ),
        )
    draft.put('resume', resume_from is not None or auto, *old)
