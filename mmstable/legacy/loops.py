"""``runner``, ``evaluation``, ``data`` and the checkpoint to start from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmstable.legacy.draft import Translation, usage_errors
from mmstable.messages import N_
from mmstable.settings import integer

_EPOCHS = ('max_epochs', 'mmstable.SafeEpochBasedTrainLoop')
_ITERS = ('max_iters', 'mmstable.SafeIterBasedTrainLoop')
# Swin Transformer's runners with `Amp` used apex.
_RUNNERS = {
    'EpochBasedRunner': _EPOCHS,
    'EpochBasedRunnerAmp': _EPOCHS,
    'Runner': _EPOCHS,
    'IterBasedRunner': _ITERS,
    'IterBasedRunnerAmp': _ITERS,
}
_TOTALS = {
    'total_epochs': 'EpochBasedRunner',
    'total_iters': 'IterBasedRunner',
}
# With one of these keys, the loop of a new config is complete.
_SETTLED = ('type', 'max_epochs', 'max_iters')


def translate_loop(draft: Translation) -> None:
    """Translate the unit and the length of the run."""
    _move_model_settings(draft)
    _drop_workflow(draft)
    runner = draft.take('runner')
    old = ['runner'] if runner is not None else []
    for key, kind in _TOTALS.items():
        total = draft.settings.pop(key, None)
        if total is None:
            continue
        runner = {'type': kind} if runner is None else runner
        old.append(key)
        name = _RUNNERS[kind][0]
        found = runner.setdefault(name, total)
        if found != total:
            draft.contradict(key, total, f'runner.{name}', found)
    if runner is not None:
        _put_loop(draft, runner, old)


def _put_loop(
    draft: Translation, runner: dict[str, Any], old: list[str]
) -> None:
    kind = runner.pop('type', 'EpochBasedRunner')
    if kind in _RUNNERS:
        length, loop = _RUNNERS[kind]
    else:
        length, loop = _ITERS if 'max_iters' in runner else _EPOCHS
        why = N_("'{kind}' is not a runner of mmcv 1.7; {loop} replaces it")
        draft.warn('runner.type', why, kind=kind, loop=loop)
    if length not in runner:
        why = N_('{path}: {kind} needs `{name}`.')
        draft.refuse(why, path=old[0], kind=kind, name=length)
    with usage_errors():
        total = integer(old[0], length, runner.pop(length))
    for name, value in runner.items():
        if value is not None:
            draft.warn(f'runner.{name}', 'no such setting in the train loop')
    settled = draft.settings.get('train_cfg') or {}
    if any(key in settled for key in _SETTLED):
        if settled.get(length) == total:
            draft.note(old[0], 'same as `train_cfg`')
        else:
            draft.conflict(old[0], 'train_cfg', {length: total}, settled)
        return
    draft.by_epoch = length == 'max_epochs'
    draft.put('train_cfg', {'type': loop, length: total, **settled}, *old)


def _drop_workflow(draft: Translation) -> None:
    if 'workflow' not in draft.settings:
        return
    workflow = draft.settings.pop('workflow') or []
    if not all(isinstance(flow, (list, tuple)) and flow for flow in workflow):
        why = N_("workflow: must be a list like [('train', 1)], got {got!r}.")
        draft.refuse(why, got=workflow)
    if [flow[0] for flow in workflow] in ([], ['train']):
        draft.note('workflow', 'not needed, the loop only trains')
    else:
        why = N_('{workflow}: mmengine computes no losses on validation data')
        draft.leave('workflow', why, workflow=repr(workflow))


def _move_model_settings(draft: Translation) -> None:
    """Move settings that old detectors had outside the model."""
    for key in ('train_cfg', 'test_cfg'):
        value = draft.settings.get(key)
        if not draft.all_old or not isinstance(value, dict):
            continue
        model = draft.settings.get('model')
        if not isinstance(model, dict):
            draft.leave(key, 'belongs into `model`, which this file lacks')
        elif key in model:
            draft.leave(key, '`model.{key}` is set, and is kept', key=key)
        else:
            draft.put('model', {**model, key: value}, key)
        del draft.settings[key]


# From `evaluation` to settings of the train loop ...
_LOOP = {
    'interval': 'val_interval',
    'start': 'val_begin',
    'dynamic_intervals': 'dynamic_intervals',
}
# ... and of the checkpoint hook.
_BEST = ('save_best', 'rule', 'greater_keys', 'less_keys')


def translate_evaluation(draft: Translation) -> None:
    """Translate the interval of validation and the best checkpoint."""
    config = draft.take('evaluation')
    if config is None:
        return
    given = {k: v for k, v in config.items() if v is not None}
    loop = {new: given[old] for old, new in _LOOP.items() if old in given}
    if loop:
        draft.fill('train_cfg', loop, 'evaluation')
    draft.drop('evaluation', config)
    best = {name: given[name] for name in _BEST if name in given}
    if best.get('save_best'):
        _save_best(draft, best)
    rest = ', '.join(
        f'evaluation.{name}'
        for name in config
        if name not in given or name not in (*_LOOP, *_BEST)
    )
    if rest and draft.settings.get('val_evaluator'):
        draft.leave(rest, 'not used, `val_evaluator` has the metrics')
    elif rest:
        why = N_('mmcv datasets evaluated themselves; add a `val_evaluator`')
        draft.leave(rest, why)


def _save_best(draft: Translation, best: dict[str, Any]) -> None:
    if not draft.settings.get('val_evaluator'):
        why = N_('{best!r} is a validation metric: add a `val_evaluator`')
        draft.leave('evaluation.save_best', why, best=best['save_best'])
        return
    hooks = dict(draft.settings.get('default_hooks') or {})
    hook = dict(
        hooks.get('checkpoint')
        or {'type': 'mmstable.SafeCheckpointHook', 'by_epoch': draft.by_epoch}
    )
    hooks['checkpoint'] = {**best, **hook}
    draft.put('default_hooks', hooks, 'evaluation')


def translate_start(draft: Translation) -> None:
    """Translate the checkpoint to resume from."""
    settings = draft.settings
    old = [key for key in ('resume_from', 'auto_resume') if key in settings]
    if not old:
        return
    resume_from = settings.pop('resume_from', None)
    auto = bool(settings.pop('auto_resume', False))
    load_from = settings.get('load_from')
    if resume_from is not None:
        if load_from is not None and load_from != resume_from:
            why = N_('{value!r}: `resume_from` takes precedence, as in mmcv')
            draft.note('load_from', why, value=load_from)
        draft.put('load_from', resume_from, 'resume_from')
    elif auto and load_from is not None:
        auto = False
        why = N_('no effect with `load_from`; use `mmstable train --resume`')
        draft.leave('auto_resume', why)
    draft.put('resume', resume_from is not None or auto, *old)


def settle_validation(draft: Translation) -> None:
    """Add a loop for each loader, or rename the loader.

    mmengine needs loader, loop and evaluator together, or none of them.
    """
    missing = []
    for split in ('val', 'test'):
        key = f'{split}_dataloader'
        if 'data' not in draft.origins.get(key, ()):
            continue
        if draft.settings.get(f'{split}_evaluator'):
            loop = {'type': f'mmstable.Safe{split.capitalize()}Loop'}
            draft.settings.setdefault(f'{split}_cfg', loop)
            continue
        aside = f'old_{key}'
        draft.settings[aside] = draft.settings.pop(key)
        draft.origins[aside] = draft.origins.pop(key)
        missing.append(split)
    if missing:
        why = N_('kept as {loaders: and }; needs {evaluators: and }')
        draft.leave(
            ', '.join(f'data.{split}' for split in missing),
            why,
            loaders=[f'`old_{one}_dataloader`' for one in missing],
            evaluators=[f'`{one}_evaluator`' for one in missing],
        )


_BATCH = ('samples_per_gpu', 'imgs_per_gpu', 'videos_per_gpu')
# From `data` to arguments of torch's DataLoader.
_LOADER = {
    **dict.fromkeys(_BATCH, 'batch_size'),
    'workers_per_gpu': 'num_workers',
    'persistent_workers': 'persistent_workers',
    'pin_memory': 'pin_memory',
    'drop_last': 'drop_last',
    'prefetch_factor': 'prefetch_factor',
    'timeout': 'timeout',
}
_SHARED = (*_LOADER, 'shuffle')


def translate_data(draft: Translation) -> None:
    """Translate the loaders; datasets and pipelines stay as they are."""
    data = draft.take('data')
    if data is None:
        return
    shared = {name: data.pop(name) for name in _SHARED if name in data}
    shuffle = shared.pop('shuffle', None)
    for split in ('train', 'val', 'test'):
        dataset = data.pop(split, None)
        own = dict(data.pop(f'{split}_dataloader', None) or {})
        if split == 'train' and shuffle is not None:
            own.setdefault('shuffle', shuffle)
        if dataset is None and split == 'train' and shared:
            # A config may only change the batch size of its base.
            draft.put('train_dataloader', _sizes({**shared, **own}), 'data')
        elif dataset is not None:
            loader = _loader(draft, split, dataset, {**shared, **own}, own)
            draft.put(f'{split}_dataloader', loader, 'data')
    for name in data:
        draft.leave(f'data.{name}', 'not an argument of a loader, dropped')


def _loader(
    draft: Translation,
    split: str,
    dataset: Any,
    settings: dict[str, Any],
    own: Mapping[str, Any],
) -> dict[str, Any]:
    training = split == 'train'
    if not training and not any(name in own for name in _BATCH):
        # mmcv's projects test one sample at a time by default.
        settings = {k: v for k, v in settings.items() if k not in _BATCH}
        if isinstance(dataset, Mapping):
            dataset = dict(dataset)
            settings['samples_per_gpu'] = dataset.pop('samples_per_gpu', 1)
    endless = training and not draft.by_epoch
    sampler = {
        'type': 'InfiniteSampler' if endless else 'DefaultSampler',
        'shuffle': settings.get('shuffle', training),
    }
    dataset = _dataset(dataset, training)
    loader = {**_sizes(settings), 'sampler': sampler, 'dataset': dataset}
    for name in own:
        if name not in _SHARED:
            path = f'data.{split}_dataloader.{name}'
            why = N_('{value!r}: not an argument of a loader or its sampler')
            draft.leave(path, why, value=own[name])
    return loader


def _sizes(settings: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {n: settings[old] for old, n in _LOADER.items() if old in settings}
    if not sizes.get('num_workers'):
        # torch rejects it without workers.
        sizes.pop('persistent_workers', None)
    return sizes


def _dataset(dataset: Any, training: bool) -> Any:
    if isinstance(dataset, (list, tuple)):
        return {
            'type': 'ConcatDataset',
            'datasets': [_dataset(one, training) for one in dataset],
        }
    if not isinstance(dataset, Mapping):
        return dataset
    wraps = 'dataset' in dataset or 'datasets' in dataset
    if training or wraps or 'test_mode' in dataset:
        return dict(dataset)
    # mmcv's projects set this when they build the dataset.
    return {**dataset, 'test_mode': True}


# Transforms of mmcv 1.x, and their successors in the projects.
_ENDED = {
    'Collect': 'the Pack...Inputs of your project',
    'Collect3D': 'Pack3DDetInputs',
    'DefaultFormatBundle': 'the Pack...Inputs of your project',
    'DefaultFormatBundle3D': 'Pack3DDetInputs',
    'ImageToTensor': 'the Pack...Inputs of your project',
    'ToDataContainer': 'nothing (there are no data containers)',
    'MultiScaleFlipAug': 'TestTimeAug, or only its inner transforms',
    'MultiScaleFlipAug3D': 'TestTimeAug, or only its inner transforms',
}


def find_old_pipelines(draft: Translation) -> None:
    """Report old transforms and models, which are not changed."""
    data = draft.settings.get('data')
    if not isinstance(data, Mapping):
        return
    found = False
    for path, pipeline in _pipelines(data, 'data'):
        ended = [
            f'{step["type"]} [{index}] -> {_ENDED[step["type"]]}'
            for index, step in enumerate(pipeline)
            if isinstance(step, Mapping) and step.get('type') in _ENDED
        ]
        if ended:
            found = True
            draft.leave(path, 'not changed; replace {steps}', steps=ended)
    model: Any = draft.settings.get('model')
    is_model = isinstance(model, Mapping)
    if found and is_model and 'data_preprocessor' not in model:
        why = N_('not changed; move mean and std to a `data_preprocessor`')
        draft.leave('model', why)


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
