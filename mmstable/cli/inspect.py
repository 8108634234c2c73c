"""``mmstable inspect``: print what is in a checkpoint."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Mapping, Sequence

from mmstable.checkpoint.description import (
    Description,
    compare_weights,
    describe_checkpoint,
    kind_of,
)
from mmstable.cli.progress import working
from mmstable.messages import _
from mmstable.messages.printable import printable


def inspect(path: str, other: str | None) -> int:
    """Describe a checkpoint, or compare two; the exit code.

    Args:
        path (str): The checkpoint.
        other (str, optional): What to compare it with.
    """
    first = _read(path)
    if other is None:
        _print_one(path, first)
    else:
        _print_two(path, first, other, _read(other))
    return 0


def _read(path: str) -> Description:
    with working(_("reading '{path}'", path=path)):
        return describe_checkpoint(path)


def _print_one(path: str, found: Description) -> None:
    _print_table([path, ''], list(map(list, found.facts.items())))
    kinds = [[name, kind_of(one)] for name, one in found.weights.items()]
    title = [_('key'), _('shape and type')]
    _print_table(title, kinds)


def _print_two(
    path: str, first: Description, other: str, second: Description
) -> None:
    names = dict.fromkeys([*first.facts, *second.facts])
    rows = [
        [name, first.facts.get(name, '-'), second.facts.get(name, '-')]
        for name in names
    ]
    _print_table(['', path, other], rows)
    found: Mapping[str, str] = compare_weights(first.weights, second.weights)
    common = set(first.weights) & set(second.weights)
    equal = len(common - set(found))
    title = _(
        '{equal} equal, {differing} different:',
        equal=equal,
        differing=len(found),
    )
    _print_table([title, ''], list(map(list, found.items())))


def _print_table(title: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    # Files may hold any text: none of it reaches a terminal as it is.
    cells = [[printable(cell) for cell in row] for row in [title, *rows]]
    if not (sys.stdout.isatty() and _print_richly(cells)):
        _print_plainly(cells)


def _print_richly(cells: list[list[str]]) -> bool:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    # As text, because brackets would be markup otherwise.
    title, *rows = [[Text(cell) for cell in row] for row in cells]
    table = Table()
    for cell in title:
        table.add_column(cell)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    return True


def _print_plainly(cells: list[list[str]]) -> None:
    widths = [max(map(_width, column)) for column in zip(*cells)]
    for row in cells:
        padded = [
            cell + ' ' * (width - _width(cell))
            for cell, width in zip(row, widths)
        ]
        print('  '.join(padded).rstrip())
    print()


def _width(text: str) -> int:
    """Columns in a terminal, where Chinese characters take two."""
    wide = sum(unicodedata.east_asian_width(char) in 'WF' for char in text)
    return len(text) + wide
