"""Keep dashboards from stopping or blocking a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmstable.preflight.config_tree import kind_of
from mmstable.protection.change import Group
from mmstable.protection.draft import Draft

_QUEUED = 'mmstable.QueuedVisBackend'


def queue_backends(draft: Draft) -> None:
    """Put every back-end of the visualizer behind a queue."""
    if draft.get('visualizer') is None:
        # As mmengine does by itself.
        backend = _queued({'type': 'LocalVisBackend'})
        visualizer = {'type': 'Visualizer', 'vis_backends': [backend]}
        name = backend['name']
        draft.put(('visualizer',), visualizer, Group.BACKEND, name)
        return
    path = ('visualizer', 'vis_backends')
    backends = draft.get(*path)
    if not backends:
        return
    if isinstance(backends, Mapping):
        backends = [backends]
    queued = [_queued(one) for one in backends]
    new = [one for one, old in zip(queued, backends) if one is not old]
    if new:
        names = ', '.join(one['name'] for one in new)
        draft.put(path, queued, Group.BACKEND, names)


def _queued(backend: Any) -> Any:
    name = kind_of(backend) if isinstance(backend, Mapping) else ''
    if not name or name == _QUEUED.rpartition('.')[2]:
        return backend
    inner = dict(backend)
    # `visualizer.get_backend(name)` must still find it.
    return {
        'type': _QUEUED,
        'name': inner.pop('name', None) or name,
        'backend': inner,
    }
