"""Rules about batches, workers, samplers and files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from mmstable.check.config_tree import (
    LOADERS,
    ConfigView,
    Node,
    Part,
    kind_of,
    look_up,
    walk,
    whole_number,
)
from mmstable.check.rule import Violation, error, setting, warning
from mmstable.errors import ConfigError
from mmstable.finding import Severity
from mmstable.loops.checks import check_batch_size, check_counts
from mmstable.messages import N_

# Training gives no evidence that a batch this many times larger fits.
_MUCH_LARGER = 4
_SAMPLING = ('sample_batch_size', 'sampling_batch_size')
_BATCH_NORMS = ('BN', 'BN1d', 'BN2d', 'BN3d')


@error(
    is_fatal=True,
    what='{error}',
    why='No batch has this size; an integer division may have given 0.',
    fix='set `batch_size` to an int of at least 1',
)
def bad_batch_size(view: ConfigView) -> Iterator[Violation]:
    """Find batch sizes such as 0, the result of an integer division."""
    for name in LOADERS:
        try:
            check_batch_size(view.get(name), name)
        except ConfigError as reason:
            yield Violation(f'{name}.batch_size', error=reason)


@error(
    is_fatal=True,
    what='{error}',
    why='The optimizer would never step: with several optimizers, the last '
    'incomplete accumulation is dropped.',
    fix='lower `accumulative_counts` or train longer',
)
def accumulation_too_long(view: ConfigView) -> Iterator[Violation]:
    """Find a step of one of several wrappers that is never reached."""
    several = [one for one in view.wrappers if one.path != 'optim_wrapper']
    for wrapper in several if view.length and not view.by_epoch else ():
        counts = wrapper.get('accumulative_counts')
        try:
            check_counts(wrapper.path, counts, view.length or 0)
        except ConfigError as reason:
            yield Violation(wrapper.at('accumulative_counts'), error=reason)


@warning(
    what='`{path}` is {size}, but the training batch size is '
    '{view.batch_size}.',
    why='Such a batch can run out of memory, hours after the start.',
)
def large_val_batch(view: ConfigView) -> Iterator[Violation]:
    """Find validation or sampling batches much larger than the training's."""
    train = view.batch_size
    places = ['val_dataloader.batch_size']
    places += [
        f'{path}.{name}'.lstrip('.')
        for path, node in view.nodes('')
        for name in _SAMPLING
        if name in node
    ]
    for path in places:
        size = whole_number(view.get(path))
        if size and train and size >= _MUCH_LARGER * train:
            yield Violation(path, {path: train}, size=size)


@warning(
    what='{kind} with a batch size of 1.',
    why='Statistics of one sample are noise; accumulation does not help.',
    fix='use a larger batch, SyncBN over several ranks, or GroupNorm '
    "(`norm_cfg=dict(type='GN', num_groups=32)`)",
)
def batchnorm_of_one(view: ConfigView) -> Iterator[Violation]:
    """Find batch statistics of a single sample."""
    if view.batch_size != 1:
        return
    for path, node in view.nodes('model'):
        norm = node.get('norm_cfg')
        # With `norm_eval` the statistics are fixed.
        if node.get('norm_eval') or not isinstance(norm, dict):
            continue
        kind = kind_of(norm)
        alone = kind == 'SyncBN' and view.ranks == 1
        if kind in _BATCH_NORMS or alone:
            yield Violation(f'{path}.norm_cfg', kind=kind)
            return


_SIZES = ('crop_size', 'size', 'scale', 'img_scale', 'scales')
_CHANNELS = 3


@error(
    is_fatal=True,
    what='`{path}` needs `num_workers` above 0.',
    why='torch rejects worker settings without workers.',
)
def workers_without_number(view: ConfigView) -> Iterator[Violation]:
    """Find worker settings without workers, for which torch raises."""
    off = {'persistent_workers': False, 'prefetch_factor': None}
    for loader in view.loaders:
        for name, right in off.items():
            if loader.get('num_workers', 0) == 0 and loader.get(name):
                yield Violation(loader.at(name), {loader.at(name): right})


@warning(
    what='{workers:worker|workers} x {view.local_ranks:rank|ranks} = {all} '
    'processes on {view.machine.cores:core|cores}.',
    why='More busy processes than cores slow down each other and training.',
    fix='use fewer workers',
)
def too_many_workers(view: ConfigView) -> Iterator[Violation]:
    """Find more busy processes than cores."""
    cores, ranks = view.machine.cores, view.local_ranks
    for loader in view.loaders[:1]:
        workers = whole_number(loader.get('num_workers')) or 0
        if workers * ranks <= cores:
            continue
        path = loader.at('num_workers')
        # At least one: torch rejects worker settings without workers.
        fewer = max(1, cores // ranks)
        change = {path: fewer} if fewer * ranks <= cores else {}
        yield Violation(path, change, workers=workers, all=workers * ranks)


@warning(
    what='{workers:worker|workers} x prefetch {prefetch} x '
    '{view.local_ranks:rank|ranks} x {size:.2f} GB per batch = {need:.2f} GB, '
    'but /dev/shm has {limit:.2f} GB free.',
    why='Workers die with a bus error when /dev/shm is full.',
    fix='use fewer workers, a smaller `prefetch_factor` or smaller batches',
)
def shared_memory(view: ConfigView) -> Iterator[Violation]:
    """Find prefetched batches that do not fit into /dev/shm."""
    limit = view.machine.shared_memory
    for loader in view.loaders if limit is not None else ():
        workers = whole_number(loader.get('num_workers')) or 0
        prefetch = whole_number(loader.get('prefetch_factor')) or 2
        size = _batch_bytes(loader)
        need = workers * prefetch * view.local_ranks * size
        if limit is not None and need > limit:
            yield Violation(
                loader.at('num_workers'),
                workers=workers,
                prefetch=prefetch,
                size=size / 1e9,
                need=need / 1e9,
                limit=limit / 1e9,
            )


def _batch_bytes(loader: Part) -> int:
    """Estimate the bytes of a batch from its image size; 0 if unknown."""
    found = [node.get('pipeline') for _, node in walk(loader.get('dataset'))]
    pipelines = [one for one in found if isinstance(one, (list, tuple))]
    steps = pipelines[0] if pipelines else ()
    areas = [0, *filter(None, map(_area, steps))]
    is_float = any(kind_of(step) == 'Normalize' for step in steps)
    size = whole_number(loader.get('batch_size')) or 1
    return size * areas[-1] * _CHANNELS * (4 if is_float else 1)


def _area(step: Any) -> int:
    """Return the pixels after a step of a pipeline; 0 if unknown."""
    for name in _SIZES:
        value: Any = look_up(step, name)
        if isinstance(value, (list, tuple)) and value:
            value = value[0] if isinstance(value[0], (list, tuple)) else value
        if whole_number(value):
            value = (value, value)
        is_pair = isinstance(value, (list, tuple)) and len(value) == 2
        if is_pair and all(map(whole_number, value)):
            return int(value[0] * value[1])
    return 0


setting(
    'endless_epoch',
    Severity.ERROR,
    'train_dataloader.sampler',
    lambda view, part, sampler: (
        view.by_epoch
        and view.length is not None
        and kind_of(sampler) == 'InfiniteSampler'
    ),
    {'type': 'DefaultSampler', 'shuffle': True},
    what='InfiniteSampler in an epoch-based run.',
    why='The first epoch never ends: no validation, no checkpoint.',
)
# Samplers of torch, which give every rank the same samples.
_ALONE = (
    'RandomSampler',
    'SequentialSampler',
    'SubsetRandomSampler',
    'WeightedRandomSampler',
)


@error(
    what='{kind} with {view.ranks:rank|ranks}.',
    why="torch's samplers ignore ranks: all train on the same samples.",
)
def sampler_repeats_data(view: ConfigView) -> Iterator[Violation]:
    """Find ranks that train on the same samples.

    Validation is not checked: some published configs want it there.
    """
    path = 'train_dataloader.sampler'
    kind = kind_of(view.get(path))
    if view.ranks > 1 and kind in _ALONE:
        is_random = kind != 'SequentialSampler'
        right = {'type': 'DefaultSampler', 'shuffle': is_random}
        yield Violation(path, {path: right}, kind=kind)


_ELSEWHERE = re.compile(r'^[\w+.-]{2,}:')
# They download missing files.
_DOWNLOADED = re.compile('CIFAR|MNIST')


_NO_FILE = N_("'{file}' does not exist.")


@error(
    what=_NO_FILE,
    why='The dataset cannot be read from a missing path.',
    fix='correct the path, mount the data, or start in the right folder',
)
def missing_data(view: ConfigView) -> Iterator[Violation]:
    """Find missing folders and annotation files of datasets."""
    seen: set[str] = set()
    for path, node in view.data_nodes:
        name, file = _missing(view, node) if _is_local(node) else ('', '')
        if file and file not in seen:
            seen.add(file)
            yield Violation(f'{path}.{name}', file=file)


@error(
    what=_NO_FILE,
    why='Training cannot start from missing weights.',
    fix='correct the path, or download the file',
)
def missing_weights(view: ConfigView) -> Iterator[Violation]:
    """Find missing checkpoints to start from."""
    places = [('load_from', view.get('load_from'))]
    for path, node in view.nodes('model'):
        places.append((f'{path}.pretrained', node.get('pretrained')))
        if kind_of(node) == 'Pretrained':
            places.append((f'{path}.checkpoint', node.get('checkpoint')))
    seen: set[str] = set()
    for path, file in places:
        if _is_path(file) and file not in seen:
            seen.add(file)
            if not view.machine.exists(file):
                yield Violation(path, file=file)


def _missing(view: ConfigView, node: Node) -> tuple[str, str]:
    """Return the first setting of a dataset whose file does not exist."""
    root = node.get('data_root') or ''
    if _is_path(root) and not view.machine.exists(root):
        return 'data_root', root
    files = {'ann_file': node.get('ann_file')}
    prefix = node.get('data_prefix')
    if isinstance(prefix, Mapping):
        files.update({f'data_prefix.{k}': v for k, v in prefix.items()})
    elif isinstance(prefix, str):
        files['data_prefix'] = prefix
    for name, value in files.items():
        file = os.path.join(root, value or '')
        is_path = _is_path(value) and _is_path(file)
        if is_path and not view.machine.exists(file):
            return name, file
    return '', ''


def _is_local(node: Node) -> bool:
    """Whether a dict is a dataset whose files are read from a disk."""
    backend = node.get('backend_args') or node.get('file_client_args')
    if look_up(backend, 'backend') not in (None, 'disk', 'local'):
        return False
    has_files = not {'data_root', 'ann_file', 'data_prefix'}.isdisjoint(node)
    return has_files and not _DOWNLOADED.search(kind_of(node))


def _is_path(value: Any) -> bool:
    is_text = isinstance(value, str) and bool(value)
    return is_text and not _ELSEWHERE.match(value)
