"""Files and folders that are not there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from mmstable.finding import Severity
from mmstable.preflight.config_tree import Node, kind_of, walk
from mmstable.preflight.config_view import ConfigView
from mmstable.preflight.rule import Hit, rule

_ELSEWHERE = re.compile(r'^[\w+.-]{2,}:')
# They fetch what is missing.
_DOWNLOADED = re.compile('CIFAR|MNIST')


@rule('missing_data', Severity.ERROR)
def missing_data(view: ConfigView) -> Iterator[Hit]:
    """Folders and annotation files of data sets."""
    seen: set[str] = set()
    for loader in view.loaders:
        where = f'{loader.path}.dataset'
        for path, node in walk(loader.settings.get('dataset'), where):
            found = _missing(view, node) if _is_local(node) else None
            if found is not None and found[1] not in seen:
                seen.add(found[1])
                yield Hit(f'{path}.{found[0]}', {'file': found[1]})


@rule('missing_weights', Severity.ERROR)
def missing_weights(view: ConfigView) -> Iterator[Hit]:
    """Checkpoints to start from."""
    places = [('load_from', view.get('load_from'))]
    for path, node in walk(view.get('model'), 'model'):
        places.append((f'{path}.pretrained', node.get('pretrained')))
        if kind_of(node) == 'Pretrained':
            places.append((f'{path}.checkpoint', node.get('checkpoint')))
    seen: set[str] = set()
    for path, file in places:
        if not _is_path(file) or file in seen:
            continue
        seen.add(file)
        if not view.machine.exists(file):
            yield Hit(path, {'file': file})


def _missing(view: ConfigView, node: Node) -> tuple[str, str] | None:
    """The first setting of a data set that names what is not there."""
    root = node.get('data_root') or ''
    if root and _is_path(root) and not view.machine.exists(root):
        return 'data_root', root
    for name, value in _files_of(node):
        file = os.path.join(root, value)
        is_path = _is_path(value) and _is_path(file)
        if is_path and not view.machine.exists(file):
            return name, file
    return None


def _files_of(node: Node) -> Iterator[tuple[str, Any]]:
    yield 'ann_file', node.get('ann_file') or ''
    prefix = node.get('data_prefix')
    if isinstance(prefix, str):
        yield 'data_prefix', prefix
    elif isinstance(prefix, Mapping):
        for name, value in prefix.items():
            yield f'data_prefix.{name}', value or ''


def _is_local(node: Node) -> bool:
    """Whether a dict is a data set whose files are read from a disk."""
    backend = node.get('backend_args') or node.get('file_client_args') or {}
    kind = backend.get('backend') if isinstance(backend, Mapping) else None
    return (
        kind in (None, 'disk', 'local')
        and not _DOWNLOADED.search(kind_of(node))
        and bool({'data_root', 'ann_file', 'data_prefix'} & set(node))
    )


def _is_path(value: Any) -> bool:
    return (
        isinstance(value, str) and bool(value) and not _ELSEWHERE.match(value)
    )
