"""The modules around the place of a fault, as a tree."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from torch.nn import Module

from mmstable.forensics.module_ranges import ModuleRanges
from mmstable.messages import N_, _
from mmstable.messages.printable import printable

# How many modules to show before and after the one that leads to the fault.
_NEIGHBOURS = 3
_PASSES = {
    'forward': N_('forward'),
    'backward': N_('backward'),
}


@dataclass
class Node:
    """A line of a tree.

    Args:
        text (str): What it says.
        is_bad (bool): Whether its values are not finite. Defaults to False.
        children (list[Node]): The lines below it. Defaults to [].
    """

    text: str
    is_bad: bool = False
    children: list[Node] = field(default_factory=list)


def module_tree(
    model: Module, ranges: ModuleRanges, focus: str, mark: str
) -> Node:
    """The path to a module, with the neighbours on the way.

    Args:
        model (Module): The model.
        ranges (ModuleRanges): What its modules have computed.
        focus (str): The name of the module; '' for the model itself.
        mark (str): What to say of that one; '' for nothing.
    """
    modules = dict(model.named_modules())
    if focus not in modules:
        focus, mark = '', ''

    def grow(name: str) -> Node:
        on_path = not name or focus == name or focus.startswith(f'{name}.')
        node = _line(name, modules[name], ranges)
        if name == focus and mark:
            node.text += f'  <- {mark}'
        if not on_path:
            return node
        prefix = f'{name}.' if name else ''
        names = [prefix + one for one, __ in modules[name].named_children()]
        # A module that is used twice is known by its first name.
        names = [one for one in names if one in modules]
        on_way = [
            index
            for index, one in enumerate(names)
            if focus == one or focus.startswith(f'{one}.')
        ]
        middle = on_way[0] if on_way else 0
        first = max(0, middle - _NEIGHBOURS)
        last = middle + _NEIGHBOURS + 1
        node.children = [
            *_rest(first),
            *map(grow, names[first:last]),
            *_rest(len(names) - last),
        ]
        return node

    return grow('')


def _line(name: str, module: Module, ranges: ModuleRanges) -> Node:
    spreads = ranges.below(name)
    values = [
        _(_PASSES[phase]) + f' {one}' for phase, one in spreads.items()
    ] or [_('not reached')]
    label = name.rpartition('.')[2]
    label = f'{label}: ' if label else ''
    return Node(
        f'{label}{type(module).__name__}  {"  ".join(values)}',
        any(one.is_bad for one in spreads.values()),
    )


def _rest(count: int) -> list[Node]:
    return [Node(_('({count} more)', count=count))] if count > 0 else []


def print_tree(root: Node) -> None:
    """Print a tree: in colours on a terminal, if rich is installed."""
    if not (sys.stdout.isatty() and _print_richly(root)):
        print('\n'.join(plain_lines(root)))


def plain_lines(node: Node) -> list[str]:
    """A tree as lines of text."""
    lines = [printable(node.text)]
    for index, child in enumerate(node.children):
        is_last = index == len(node.children) - 1
        branch, trunk = ('└─ ', '   ') if is_last else ('├─ ', '│  ')
        first, *rest = plain_lines(child)
        lines += [branch + first, *(trunk + line for line in rest)]
    return lines


def _print_richly(root: Node) -> bool:
    try:
        from rich.console import Console
        from rich.text import Text
        from rich.tree import Tree
    except ImportError:
        return False

    def grow(node: Node, tree: Any) -> None:
        for child in node.children:
            grow(child, tree.add(show(child)))

    def show(node: Node) -> Text:
        # As text, because brackets would be markup otherwise.
        return Text(printable(node.text), 'bold red' if node.is_bad else '')

    tree = Tree(show(root))
    grow(root, tree)
    Console().print(tree)
    return True
