"""``data`` becomes the data loaders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmstable.legacy.config.draft import Draft, take_dict
from mmstable.messages import _

_SPLITS = ('train', 'val', 'test')
_BATCH = ('samples_per_gpu', 'imgs_per_gpu', 'videos_per_gpu')
# Of one loader, where they mean the same in torch's DataLoader.
_SAME = (
    'persistent_workers',
    'pin_memory',
    'drop_last',
    'prefetch_factor',
    'timeout',
)
_SHARED = (*_BATCH, 'workers_per_gpu', *_SAME, 'shuffle')


def translate_data(draft: Draft) -> None:
    """Settle the loaders; data sets and pipelines stay as they are."""
    data = take_dict(draft, 'data')
    if data is None:
        return
    shared = {name: data.pop(name) for name in _SHARED if name in data}
    shuffle = shared.pop('shuffle', None)
    for split in _SPLITS:
        dataset = data.pop(split, None)
        own = dict(data.pop(f'{split}_dataloader', None) or {})
        if split == 'train' and shuffle is not None:
            own.setdefault('shuffle', shuffle)
        if dataset is None and split == 'train' and shared:
            # A leaf may change the batch size of a base.
            draft.put('train_dataloader', _sizes({**shared, **own}), 'data')
        elif dataset is not None:
            loader = _loader(draft, split, dataset, {**shared, **own}, own)
            draft.put(f'{split}_dataloader', loader, 'data')
    for name in data:
        draft.leave(
            f'data.{name}',
            _('no loader of mmengine takes it; it is left out'),
        )


def _loader(
    draft: Draft,
    split: str,
    dataset: Any,
    settings: dict[str, Any],
    own: Mapping[str, Any],
) -> dict[str, Any]:
    training = split == 'train'
    if not training and not any(name in own for name in _BATCH):
        # mmcv's projects test one sample at a time unless told otherwise.
        settings = {k: v for k, v in settings.items() if k not in _BATCH}
        if isinstance(dataset, Mapping):
            dataset = dict(dataset)
            settings['samples_per_gpu'] = dataset.pop('samples_per_gpu', 1)
    endless = training and not draft.by_epoch
    shuffle = settings.get('shuffle', training)
    loader = {
        **_sizes(settings),
        'sampler': {
            'type': 'InfiniteSampler' if endless else 'DefaultSampler',
            'shuffle': shuffle,
        },
        'dataset': _dataset(dataset, training),
    }
    for name in own:
        if name not in _SHARED:
            draft.leave(
                f'data.{split}_dataloader.{name}',
                _(
                    '{value!r}: not an argument of the loader; in mmengine a '
                    'sampler has settings of its own',
                    value=own[name],
                ),
            )
    return loader


def _sizes(settings: Mapping[str, Any]) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    for name in _BATCH:
        if name in settings:
            sizes['batch_size'] = settings[name]
    if 'workers_per_gpu' in settings:
        sizes['num_workers'] = settings['workers_per_gpu']
    sizes.update({name: settings[name] for name in _SAME if name in settings})
    if not sizes.get('num_workers'):
        # torch refuses it without workers.
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
    # mmcv's projects set this when they build it.
    return {**dataset, 'test_mode': True}
