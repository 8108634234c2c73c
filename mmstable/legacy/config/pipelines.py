"""What downstream projects have to translate themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmstable.legacy.config.draft import Draft
from mmstable.messages import _

# Steps that ended with mmcv 1.x; their successors are in each project.
_ENDED = {
    'Collect': 'the Pack...Inputs of your project',
    'Collect3D': 'Pack3DDetInputs',
    'DefaultFormatBundle': 'the Pack...Inputs of your project',
    'DefaultFormatBundle3D': 'Pack3DDetInputs',
    'ImageToTensor': 'the Pack...Inputs of your project',
    'ToDataContainer': 'nothing, data containers are gone',
    'MultiScaleFlipAug': 'TestTimeAug, or its inner steps alone',
    'MultiScaleFlipAug3D': 'TestTimeAug, or its inner steps alone',
}


def find_old_pipelines(draft: Draft) -> None:
    """List old steps and models; they are left as they are."""
    data = draft.settings.get('data')
    if not isinstance(data, Mapping):
        return
    found = False
    for path, pipeline in _pipelines(data, 'data'):
        ended = _ended_steps(pipeline)
        if ended:
            found = True
            draft.leave(path, _('left as it is; {steps:; }', steps=ended))
    model = draft.settings.get('model')
    if (
        found
        and isinstance(model, Mapping)
        and 'data_preprocessor' not in model
    ):
        draft.leave(
            'model',
            _(
                'left as it is; in mmengine it normalizes images itself, by '
                'a `data_preprocessor` with the mean and std of the pipeline'
            ),
        )


def _ended_steps(pipeline: list[Any]) -> list[str]:
    steps: dict[str, list[str]] = {}
    for index, step in enumerate(pipeline):
        kind = step.get('type') if isinstance(step, Mapping) else None
        if kind in _ENDED:
            steps.setdefault(_ENDED[kind], []).append(f'{kind} [{index}]')
    return [
        _('instead of {old: and } there is {new}', old=old, new=new)
        for new, old in steps.items()
    ]


def _pipelines(node: Any, path: str) -> Iterator[tuple[str, list[Any]]]:
    if isinstance(node, Mapping):
        for name, value in node.items():
            if name == 'pipeline' and isinstance(value, (list, tuple)):
                yield f'{path}.pipeline', list(value)
            else:
                yield from _pipelines(value, f'{path}.{name}')
    elif isinstance(node, (list, tuple)):
        for index, value in enumerate(node):
            yield from _pipelines(value, f'{path}[{index}]')
