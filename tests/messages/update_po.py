"""Bring the translations up to date with the code: ``make messages``.

A text that is new gets an empty translation, which is English until somebody
writes it; one that is no longer said goes.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

from mmstable.messages import PO_FILE, read_po

PACKAGE = Path(__file__).parents[2] / 'mmstable'


def calls() -> Iterator[tuple[Path, ast.Call]]:
    """Calls of ``_`` and ``N_``, in the order of the files."""
    for path in sorted(PACKAGE.rglob('*.py')):
        if '.mim' in path.parts:
            continue
        found = [
            node
            for node in ast.walk(ast.parse(path.read_text(encoding='utf-8')))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ('_', 'N_')
        ]
        found.sort(key=lambda node: (node.lineno, node.col_offset))
        for node in found:
            yield path, node


def literals(node: ast.expr) -> list[str]:
    """The texts of an argument; none if it is from a table."""
    if isinstance(node, ast.Constant):
        return [node.value]
    if isinstance(node, ast.IfExp):
        return literals(node.body) + literals(node.orelse)
    return []


def all_texts() -> dict[str, list[str]]:
    """Texts of the code, with the files that say them."""
    found: dict[str, list[str]] = {}
    for path, node in calls():
        name = path.relative_to(PACKAGE.parent).as_posix()
        for text in literals(node.args[0]):
            files = found.setdefault(text, [])
            if name not in files:
                files.append(name)
    return found


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
