"""What protection changes in a config, and how that is applied."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Union

# Keys of dicts and indices of lists.
Path = tuple[Union[str, int], ...]
# As a value: the setting is removed.
ABSENT = object()


class Group(Enum):
    """What a change is about."""

    CLASS = 'class'
    HOOK = 'hook'
    SETTING = 'setting'
    BACKEND = 'backend'


@dataclass(frozen=True)
class Change:
    """One setting that becomes another one.

    Args:
        path (tuple): Where it is. The place behind the end of a list adds
            to the list.
        value (Any): What it becomes; ``ABSENT`` takes it away.
        group (Group): What it is about.
        word (str): How it is named to the user; '' if another change tells.
    """

    path: Path
    value: Any
    group: Group
    word: str


@dataclass(frozen=True)
class Left:
    """A part that is of a class that mmstable knows nothing about.

    Args:
        where (str): Its dotted path.
        kind (str): Its class.
    """

    where: str
    kind: str


@dataclass(frozen=True)
class Protection:
    """What is to be changed, and what is left alone.

    Args:
        preset (str): The name of the preset.
        changes (tuple): In the order in which they apply.
        left (tuple): What stays what it is although it matters.
        strategy (str): A strategy that is in the way of all changes; '' if
            there is none.
    """

    preset: str
    changes: tuple[Change, ...]
    left: tuple[Left, ...]
    strategy: str = ''

    def words(self, group: Group) -> list[str]:
        """How the changes of a group are named, each once."""
        words = [one.word for one in self.changes if one.group is group]
        return list(dict.fromkeys(filter(None, words)))


def apply_changes(settings: Any, changes: Iterable[Change]) -> None:
    """Change nested dicts and lists in place.

    Args:
        settings (dict): The config: of plain dicts, or of mmengine's own.
        changes (Iterable[Change]): What to change.
    """
    # A dict of mmengine holds others of its kind.
    kind = type(settings)
    for change in changes:
        node = settings
        for name, following in zip(change.path, change.path[1:]):
            empty = [] if isinstance(following, int) else kind()
            node = _enter(node, name, empty)
        if change.value is ABSENT:
            node.pop(change.path[-1])
            continue
        # A copy: the config may be changed further.
        value = kind(value=copy.deepcopy(change.value))['value']
        _put(node, change.path[-1], value)


def _enter(node: Any, name: Any, empty: Any) -> Any:
    """What is there, as something that can be changed."""
    inner = node.get(name) if isinstance(node, dict) else node[name]
    if inner is None:
        inner = empty
    elif isinstance(inner, tuple):
        inner = list(inner)
    else:
        return inner
    node[name] = inner
    # A dict of mmengine keeps a copy.
    return node[name]


def _put(node: Any, name: Any, value: Any) -> None:
    if isinstance(node, list) and name == len(node):
        node.append(value)
    else:
        node[name] = value
