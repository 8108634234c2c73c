"""Bring the translations up to date with the code: ``make messages``.

A text that is new gets an empty translation, which is English until somebody
writes it; one that is no longer said goes.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from mmstable.messages import PO_FILE, read_po

PACKAGE = Path(__file__).parents[2] / 'mmstable'
# Keys of data files whose values are shown to users.
SHOWN = ('meaning', 'what', 'why', 'fix', 'texts')
# Declarations of `mmstable check` and `check-data`, with texts as arguments.
DECLARATIONS = ('error', 'warning', 'hint', 'setting', 'ProblemKind')
# Methods of the draft of `mmstable upgrade`, and which argument is a text.
REPORTS = {
    'draft.note': 1,
    'draft.leave': 1,
    'draft.warn': 1,
    'draft.refuse': 0,
}


# Functions of mmstable.cli.command that take a message, and which of their
# arguments that is.
CLI_KEYWORDS = {
    'tell': 0,
    'usage_error': 0,
    'flag': 1,
    'option': 1,
    'number': 2,
    'Command': 2,
}


@cache
def all_calls() -> tuple[tuple[Path, ast.Call], ...]:
    """Calls in the order of the files; parsing all of them takes seconds."""
    found = []
    for path in sorted(PACKAGE.rglob('*.py')):
        if '.mim' in path.parts:
            continue
        tree = ast.parse(path.read_text(encoding='utf-8'))
        nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
        nodes.sort(key=lambda node: (node.lineno, node.col_offset))
        found += [(path, node) for node in nodes]
    return tuple(found)


@cache
def calls() -> tuple[tuple[Path, ast.Call], ...]:
    """Calls of ``_``, ``N_`` and the like, the message as first argument."""
    found = []
    for path, node in all_calls():
        name = _called(node)
        if isinstance(node.func, ast.Name) and name in ('_', 'N_'):
            found.append((path, node))
        elif path.parent.name == 'cli' and name in CLI_KEYWORDS:
            position = CLI_KEYWORDS[name]
            if len(node.args) > position:
                args = node.args[position:]
                call = ast.Call(ast.Name(name), args, node.keywords)
                found.append((path, call))
    return tuple(found)


def reports() -> Iterator[tuple[Path, ast.Call]]:
    """Calls like ``draft.note(path, text, field=...)``."""
    for path, node in all_calls():
        if _dotted(node.func) in REPORTS:
            yield path, node


def texts_of(path: Path, node: ast.Call) -> list[ast.expr]:
    """The arguments of a call that are texts to translate."""
    name = _dotted(node.func)
    if name in ('_', 'N_'):
        return node.args[:1]
    if path.parent.name == 'cli' and _called(node) in CLI_KEYWORDS:
        position = CLI_KEYWORDS[_called(node)]
        return node.args[position : position + 1]
    if name in REPORTS:
        return [node.args[REPORTS[name]]]
    texts = ('what', 'why', 'fix') if name in DECLARATIONS else ()
    return [word.value for word in node.keywords if word.arg in texts]


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f'{_dotted(node.value)}.{node.attr}'
    return node.id if isinstance(node, ast.Name) else ''


def _called(node: ast.AST) -> str:
    """The function that is called, without its module."""
    if not isinstance(node, ast.Call):
        return ''
    return getattr(node.func, 'attr', getattr(node.func, 'id', ''))


def literals(node: ast.expr) -> list[str]:
    """The texts of an argument; none if it is from a table."""
    if isinstance(node, ast.Constant):
        return [node.value]
    if isinstance(node, ast.IfExp):
        return literals(node.body) + literals(node.orelse)
    return []


def all_texts() -> dict[str, list[str]]:
    """Texts of code and data, with the files that say them."""
    found: dict[str, list[str]] = {}
    said = [
        (path, text)
        for path, node in all_calls()
        for one in texts_of(path, node)
        for text in literals(one)
    ]
    for path in sorted(PACKAGE.glob('*/*/*.json')):
        content = json.loads(path.read_text(encoding='utf-8'))
        said += [(path, text) for text in data_texts(content)]
    for path, text in said:
        name = path.relative_to(PACKAGE.parent).as_posix()
        files = found.setdefault(text, [])
        if name not in files:
            files.append(name)
    return found


def data_texts(value: Any) -> Iterator[str]:
    """Texts of a data file: what is at or below a key of ``SHOWN``."""
    if isinstance(value, list):
        for item in value:
            yield from data_texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in SHOWN:
                yield from data_texts(item)
            elif isinstance(item, str):
                yield item
            else:
                yield from item.values()


def main() -> None:
    known = read_po()
    parts = [PO_FILE.read_text(encoding='utf-8').partition('\n\n')[0] + '\n']
    for text, files in all_texts().items():
        lines = [f'#: {name}' for name in files]
        lines.append(f'msgid {quoted(text)}')
        lines.append(f'msgstr {quoted(known.get(text, ""))}')
        parts.append('\n'.join(lines) + '\n')
    PO_FILE.write_text('\n'.join(parts), encoding='utf-8')


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


if __name__ == '__main__':
    main()
