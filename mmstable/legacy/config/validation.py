"""Whether there is all that validation and testing need."""

from __future__ import annotations

from mmstable.legacy.config.draft import Draft
from mmstable.messages import N_, _

_LOOPS = {'val': 'mmstable.SafeValLoop', 'test': 'mmstable.SafeTestLoop'}
_DONE = {
    'val': N_('validated'),
    'test': N_('tested'),
}


def settle_validation(draft: Draft) -> None:
    """Give loaders a loop, or put them aside.

    mmengine wants loader, loop and evaluator together or none of them.
    """
    missing = []
    for split, loop in _LOOPS.items():
        key = f'{split}_dataloader'
        if 'data' not in draft.origins.get(key, ()):
            continue
        if draft.settings.get(f'{split}_evaluator'):
            draft.settings.setdefault(f'{split}_cfg', {'type': loop})
            continue
        aside = f'old_{key}'
        draft.settings[aside] = draft.settings.pop(key)
        draft.origins[aside] = draft.origins.pop(key)
        missing.append(split)
    if missing:
        draft.leave(
            ', '.join(f'data.{split}' for split in missing),
            _(
                'kept as {loaders: and }, because there is no '
                '{evaluators: and }; nothing is {done: or } without',
                loaders=[f'`old_{one}_dataloader`' for one in missing],
                evaluators=[f'`{one}_evaluator`' for one in missing],
                done=[_(_DONE[one]) for one in missing],
            ),
        )
