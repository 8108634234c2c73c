"""Whether there is all that validation and testing need."""

from __future__ import annotations

from mmstable.preflight.legacy.draft import Draft

_LOOPS = {'val': 'ValLoop', 'test': 'TestLoop'}


def settle_validation(draft: Draft) -> None:
    """Give loaders a loop, or put them aside.

    mmengine wants loader, loop and evaluator together or none of them.
    """
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
        draft.remarks[aside] = f'until there is a {split}_evaluator'
        what = 'validates' if split == 'val' else 'tests'
        draft.leave(
            f'data.{split}',
            f'mmengine {what} with a `{split}_evaluator`, which there is '
            f'none of. Its loader is kept as `{aside}`; nothing is '
            f'{"validated" if split == "val" else "tested"} until then',
        )
