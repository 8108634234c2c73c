"""Worker processes, and what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmstable.finding import Severity
from mmstable.preflight.config_tree import kind_of, look_up, walk
from mmstable.preflight.config_view import ConfigView, Part, whole_number
from mmstable.preflight.rule import Hit, rule

_SIZES = ('crop_size', 'size', 'scale', 'img_scale', 'scales')
_CHANNELS = 3


@rule('workers_without_number', Severity.ERROR, refuses=True)
def workers_without_number(view: ConfigView) -> Iterator[Hit]:
    """Settings of workers without workers: torch raises for these."""
    for loader in view.loaders:
        if loader.settings.get('num_workers', 0) != 0:
            continue
        for name, off in (
            ('persistent_workers', False),
            ('prefetch_factor', None),
        ):
            if loader.settings.get(name):
                path = f'{loader.path}.{name}'
                in_training = loader.path != 'test_dataloader'
                yield Hit(path, {'path': path}, {path: off}, in_training)


@rule('too_many_workers', Severity.WARNING)
def too_many_workers(view: ConfigView) -> Iterator[Hit]:
    """More busy processes than cores."""
    for loader in view.loaders[:1]:
        workers = _workers(loader) * view.local_ranks
        if workers > view.machine.cores:
            fields = {
                'workers': _workers(loader),
                'ranks': view.local_ranks,
                'all': workers,
                'cores': view.machine.cores,
            }
            path = f'{loader.path}.num_workers'
            # Workers at all: a setting of workers may depend on it.
            fewer = max(1, view.machine.cores // view.local_ranks)
            mends = fewer * view.local_ranks <= view.machine.cores
            yield Hit(path, fields, {path: fewer} if mends else {})


@rule('shared_memory', Severity.WARNING)
def shared_memory(view: ConfigView) -> Iterator[Hit]:
    """Batches that wait for the model, and do not fit into /dev/shm."""
    yield from _waiting(view, view.machine.shared_memory)


@rule('worker_memory', Severity.WARNING)
def worker_memory(view: ConfigView) -> Iterator[Hit]:
    """Batches that wait for the model, and take half of the memory."""
    free = view.machine.memory
    yield from _waiting(view, None if free is None else free // 2)


def _waiting(view: ConfigView, limit: int | None) -> Iterator[Hit]:
    for loader in view.loaders if limit is not None else ():
        prefetch = whole_number(loader.settings.get('prefetch_factor')) or 2
        batch = _batch_bytes(loader)
        count = _workers(loader) * prefetch * view.local_ranks
        if batch and count * batch > (limit or 0):
            fields = {
                'workers': _workers(loader),
                'prefetch': prefetch,
                'ranks': view.local_ranks,
                'size': batch / 1e9,
                'need': count * batch / 1e9,
                'limit': (limit or 0) / 1e9,
            }
            yield Hit(f'{loader.path}.num_workers', fields)


def _workers(loader: Part) -> int:
    return whole_number(loader.settings.get('num_workers')) or 0


def _batch_bytes(loader: Part) -> int:
    """What a batch takes, by the size of its images; 0 if unknown."""
    area, is_float = 0, False
    pipelines = [
        node['pipeline']
        for _, node in walk(loader.settings.get('dataset'))
        if isinstance(node.get('pipeline'), (list, tuple))
    ]
    for pipeline in pipelines[:1]:
        for step in pipeline:
            area = _area(step) or area
            is_float = is_float or kind_of(step) == 'Normalize'
    size = whole_number(loader.settings.get('batch_size')) or 1
    return size * area * _CHANNELS * (4 if is_float else 1)


def _area(step: Any) -> int:
    """Pixels after a step of a pipeline; 0 if it does not say."""
    for name in _SIZES:
        value: Any = look_up(step, name) if isinstance(step, Mapping) else None
        if isinstance(value, (list, tuple)) and value:
            value = value[0] if isinstance(value[0], (list, tuple)) else value
        if whole_number(value):
            value = (value, value)
        is_pair = isinstance(value, (list, tuple)) and len(value) == 2
        if is_pair and all(map(whole_number, value)):
            return int(value[0] * value[1])
    return 0
