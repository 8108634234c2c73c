"""Read YAML without running what is in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import yaml
from mmengine.fileio import YamlHandler
from mmengine.fileio.handlers import file_handlers

_PREFIX = 'tag:yaml.org,2002:'


class TagRefused(yaml.YAMLError):
    """A YAML file asks for more than plain values."""


class _PlainLoader(yaml.SafeLoader):
    """Builds what JSON has, dates, sets and tuples."""


def _tuple(loader: _PlainLoader, node: yaml.SequenceNode) -> tuple[Any, ...]:
    return tuple(loader.construct_sequence(node, deep=True))


def _refuse(loader: _PlainLoader, node: yaml.Node) -> None:
    line, tag = node.start_mark.line + 1, node.tag.replace(_PREFIX, '!!')
    raise TagRefused(
        f"line {line}: the tag '{tag}' is refused, because such tags can run "
        'code. A YAML config may hold plain values only; what needs Python '
        'goes into a .py config.'
    )


# mmengine writes tuples so.
_PlainLoader.add_constructor(f'{_PREFIX}python/tuple', _tuple)
_PlainLoader.add_constructor(None, _refuse)


class _PlainYamlHandler(YamlHandler):
    """mmengine's, with another loader."""

    def load_from_fileobj(self, file: TextIO, **kwargs: Any) -> Any:
        return yaml.load(file, Loader=_PlainLoader)


@contextmanager
def plain_yaml() -> Iterator[None]:
    """Let mmengine read nothing but plain values from YAML in the block.

    It has a loader of its own that runs ``!!python/object/apply``.
    """
    own = {name: file_handlers[name] for name in ('yaml', 'yml')}
    file_handlers.update(dict.fromkeys(own, _PlainYamlHandler()))
    try:
        yield
    finally:
        file_handlers.update(own)
